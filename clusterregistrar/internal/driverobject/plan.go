package driverobject

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Problem is a field of the spec that differs from its wanted value, and that the registrar leaves unchanged.
type Problem struct {
	// Field is the name of the field.
	Field string `json:"field"`
	// Reason is that of the event.
	Reason string `json:"reason"`
	// Message names both values, the cause and the remedy.
	Message string `json:"message"`
}

// plan is a decision about the object.
type plan struct {
	// apply: the object is to be written, with fields.
	apply  bool
	fields fields
	// force takes over fields: those that are restored, and those that an administrator has written in the registrar's name.
	force bool
	// restored has a message for each field that another field manager has changed and that is restored.
	restored []string
	// problems are the fields that stay unchanged, sorted by name.
	problems []Problem
}

// memory is what the registrar knows of earlier versions of the object.
type memory struct {
	uid types.UID
	// alone are the fields that only the registrar had when it last saw them with a value of its own.
	alone map[string]bool
}

// remember returns the memory with what live shows. A field that another field manager has by apply is that manager's.
func (m memory) remember(live *storagev1.CSIDriver) memory {
	next := memory{uid: live.UID, alone: map[string]bool{}}
	if m.uid == live.UID {
		maps.Copy(next.alone, m.alone)
	}
	all := ownersOf(live)
	for name := range all {
		others := all.others(name)
		switch {
		case len(others) == 0:
			next.alone[name] = true
		case all.ours(name), slices.ContainsFunc(others, func(o owner) bool { return o.applies }):
			delete(next.alone, name)
		}
	}
	return next
}

// decide compares the object, nil if there is none, with the wanted fields.
func decide(wanted fields, live *storagev1.CSIDriver, seen memory) plan {
	if live == nil {
		return plan{apply: true, fields: wanted}
	}
	p := plan{fields: fields{}}
	is, all := fieldsOf(live.Spec), ownersOf(live)
	names := slices.Collect(maps.Keys(wanted))
	for name := range all {
		if _, wants := wanted[name]; !wants && all.ours(name) {
			names = append(names, name)
		}
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		if want, wants := wanted[name]; wants {
			p.keep(live.Name, name, want, is[name], all, seen.alone[name])
		} else {
			p.release(live.Name, name, is[name], all)
		}
		value, applies := p.fields[name]
		p.apply = p.apply || applies != all.ours(name) || applies && !reflect.DeepEqual(value, is[name])
	}
	return p
}

// keep plans a field that shall have a value. alone: it was the registrar's alone before.
func (p *plan) keep(driver, name string, want, is any, all owners, alone bool) {
	others := all.others(name)
	switch {
	case reflect.DeepEqual(want, is):
		p.fields[name] = want
	case immutable(name):
		p.immutable(driver, name, want, is, all)
	case len(others) == 0:
		p.fields[name] = want
		p.force = p.force || slices.Contains(all[name], owner{name: Manager})
	case alone:
		p.fields[name], p.force = want, true
		p.restored = append(p.restored, fmt.Sprintf("spec.%s is %s again, which field manager %s had changed to %s", name, text(want), join(others), text(is)))
	default:
		p.problem(name, ReasonConflict, "spec.%s is %s and not %s: it is set by field manager %s, and stays unchanged. Change it there, or change the flag of %s; "+
			"if it is set there no more, run: kubectl patch csidriver %s --field-manager=%s --type=merge -p '{\"spec\":{\"%s\":%s}}'",
			name, text(is), text(want), join(others), Manager, driver, Manager, name, text(want))
	}
}

// release plans a field that is the registrar's and shall not be any more: it gets the API server's default.
func (p *plan) release(driver, name string, is any, all owners) {
	initial := []any{string(storagev1.VolumeLifecyclePersistent)} // of the only field that is immutable and may be left out
	if immutable(name) && len(all.others(name)) == 0 && !reflect.DeepEqual(initial, is) {
		p.immutable(driver, name, initial, is, all)
	}
}

// immutable plans a field that the API server does not let change. The registrar keeps it if it has it: an apply without it is a change.
func (p *plan) immutable(driver, name string, want, is any, all owners) {
	if all.ours(name) {
		p.fields[name] = is
	}
	p.problem(name, ReasonImmutable, "spec.%s is %s and not %s: the API server does not let this field change. Stop the pods that use volumes of the driver, "+
		"then run \"kubectl delete csidriver %s\": %s creates the object again", name, text(is), text(want), driver, Manager)
}

func (p *plan) problem(field, reason, format string, args ...any) {
	p.problems = append(p.problems, Problem{Field: field, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// stored notes the fields that were applied and that the API server has not stored: a feature of it is off.
func (p *plan) stored(live *storagev1.CSIDriver) {
	is := fieldsOf(live.Spec)
	for _, name := range slices.Sorted(maps.Keys(p.fields)) {
		if want := p.fields[name]; !reflect.DeepEqual(want, is[name]) {
			p.problem(name, ReasonNotStored, "spec.%s was applied as %s, and the API server stores %s: it needs a feature gate that is off. Take the flag off %s, or turn the feature on",
				name, text(want), text(is[name]), Manager)
		}
	}
}

// join returns the owners as a text, sorted.
func join(list []owner) string {
	names := make([]string, 0, len(list))
	for _, o := range list {
		names = append(names, o.String())
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " and ")
}

// configuration returns the configuration to apply. It names the UID of the object that was read, and its version if fields are taken over.
func (p *plan) configuration(driver string, live *storagev1.CSIDriver) ([]byte, error) {
	metadata := map[string]any{"name": driver}
	if live != nil {
		metadata["uid"] = live.UID
	}
	if p.force {
		metadata["resourceVersion"] = live.ResourceVersion
	}
	return json.Marshal(map[string]any{
		"apiVersion": storagev1.SchemeGroupVersion.String(), "kind": "CSIDriver", "metadata": metadata, "spec": p.fields,
	})
}
