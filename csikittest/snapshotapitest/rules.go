package snapshotapitest

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// rules are those of a CustomResourceDefinition: of its schema, and its x-kubernetes-validations.
type rules []rule

// rule is about one field. As in CEL it applies to a field that is there, and, if it compares, that was there before.
type rule struct {
	path     string // such as spec.source; "": the object
	compares bool
	// wrong returns the error of a value, or nil.
	wrong func(at *field.Path, now, was any) *field.Error
}

// validate returns what is wrong with an object. What has not changed is not judged again (KEP-4008), and no rule of CEL is applied to an
// object that has a value outside of an enumeration.
func (r rules) validate(obj, before map[string]any) field.ErrorList {
	var errs field.ErrorList
	for _, rule := range r {
		now, is := lookup(obj, rule.path)
		was, wasThere := lookup(before, rule.path)
		if !is || rule.compares && !wasThere || wasThere && reflect.DeepEqual(now, was) {
			continue
		}
		at := (*field.Path)(nil)
		for name := range strings.SplitSeq(rule.path, ".") {
			at = at.Child(name)
		}
		err := rule.wrong(at, now, was)
		switch {
		case err == nil:
		case err.Type != field.ErrorTypeNotSupported:
			errs = append(errs, err)
		case len(r) == 1:
			return field.ErrorList{err}
		default:
			return field.ErrorList{err, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")}
		}
	}
	return errs
}

// lookup returns a field; one that is null is absent.
func lookup(value any, path string) (any, bool) {
	for name := range strings.SplitSeq(path, ".") {
		fields, _ := value.(map[string]any)
		value = fields[name]
	}
	return value, value != nil
}

func has(value any, name string) bool {
	_, ok := lookup(value, name)
	return ok
}

// check makes a rule of a condition, which reports whether a value is right.
func check(path, message string, right func(now any) bool) rule {
	return rule{path: path, wrong: func(at *field.Path, now, _ any) *field.Error {
		if right(now) {
			return nil
		}
		return field.Invalid(at, now, message)
	}}
}

// compare makes a rule of a condition on a value and that of before.
func compare(path, message string, right func(now, was any) bool) rule {
	return rule{path: path, compares: true, wrong: func(at *field.Path, now, was any) *field.Error {
		if right(now, was) {
			return nil
		}
		return field.Invalid(at, now, message)
	}}
}

// immutable is the rule self == oldSelf.
func immutable(path, message string) rule { return compare(path, message, reflect.DeepEqual) }

// onceSet is the rule that a field of a value must not be removed.
func onceSet(path, name string) rule {
	return compare(path, name+" is required once set", func(now, was any) bool { return has(now, name) || !has(was, name) })
}

// notEmpty is the rule size(self) > 0.
func notEmpty(path, name string) rule {
	return check(path+"."+name, name+" must not be the empty string when set", func(now any) bool { return now != "" })
}

// both is the rule that a reference has a name and a namespace; ref is what the message calls it.
func both(path, ref string) rule {
	return check(path, "both "+ref+".name and "+ref+".namespace must be set", func(now any) bool { return has(now, "name") && has(now, "namespace") })
}

// source has the rules of spec.source, which has one of two fields forever.
func source(a, b, message string) rules {
	return rules{
		onceSet("spec.source", a), onceSet("spec.source", b),
		check("spec.source", message, func(now any) bool { return has(now, a) != has(now, b) }),
		immutable("spec.source."+a, a+" is immutable"), immutable("spec.source."+b, b+" is immutable"),
	}
}

// deletionPolicy is an enumeration.
func deletionPolicy(path string) rule {
	return rule{path: path, wrong: func(at *field.Path, now, _ any) *field.Error {
		if now == "Delete" || now == "Retain" {
			return nil
		}
		return field.NotSupported(at, now, []string{"Delete", "Retain"})
	}}
}

func snapshotRules() rules {
	return append(source("persistentVolumeClaimName", "volumeSnapshotContentName",
		"exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"),
		notEmpty("spec", "volumeSnapshotClassName"))
}

func contentRules() rules {
	return append(source("volumeHandle", "snapshotHandle", "exactly one of volumeHandle and snapshotHandle must be set"),
		deletionPolicy("spec.deletionPolicy"),
		onceSet("spec", "sourceVolumeMode"), immutable("spec.sourceVolumeMode", "sourceVolumeMode is immutable"),
		both("spec.volumeSnapshotRef", "spec.volumeSnapshotRef"),
		check("status.restoreSize", "status.restoreSize in body should be greater than or equal to 0", func(now any) bool {
			size, _ := now.(float64)
			return size >= 0
		}))
}

func classRules() rules { return rules{deletionPolicy("deletionPolicy")} }

func groupRules() rules {
	return append(source("selector", "volumeGroupSnapshotContentName",
		"exactly one of selector and volumeGroupSnapshotContentName must be set"),
		notEmpty("spec", "volumeGroupSnapshotClassName"),
		immutable("status.boundVolumeGroupSnapshotContentName", "boundVolumeGroupSnapshotContentName is immutable once set"))
}

func groupContentRules() rules {
	const ref = "volumeGroupSnapshotRef"
	same := func(now, was any, name string) bool {
		a, _ := lookup(now, name)
		b, _ := lookup(was, name)
		return a == b
	}
	return append(source("volumeHandles", "groupSnapshotHandles", "exactly one of volumeHandles and groupSnapshotHandles must be set"),
		deletionPolicy("spec.deletionPolicy"), immutable("spec.driver", "driver is immutable once set"),
		immutable("spec.volumeGroupSnapshotClassName", "volumeGroupSnapshotClassName is immutable once set"),
		both("spec."+ref, ref),
		compare("spec."+ref, ref+".name and "+ref+".namespace are immutable", func(now, was any) bool {
			return same(now, was, "name") && same(now, was, "namespace")
		}),
		compare("spec."+ref, ref+".uid is immutable once set", func(now, was any) bool { return !has(was, "uid") || same(now, was, "uid") }),
		immutable("status.volumeGroupSnapshotHandle", "volumeGroupSnapshotHandle is immutable once set"))
}

func groupClassRules() rules {
	return rules{
		deletionPolicy("deletionPolicy"), immutable("deletionPolicy", "deletionPolicy is immutable once set"),
		immutable("driver", "driver is immutable once set"), immutable("parameters", "parameters are immutable once set"),
	}
}
