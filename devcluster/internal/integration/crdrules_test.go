package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ruleCase is an object that a rule refuses when it is created, or a change of it that a rule refuses.
type ruleCase struct {
	reason string
	// fields are those that the object is created with.
	fields, status string
	// patch changes the object, or its status.
	patch, statusPatch string
	// field and message are the rule's. Without message the change is allowed.
	field, message string
}

// ruleCases are the cases of each resource. They are tried in each version; v1beta1 has fewer rules, and allows what the others refuse.
func ruleCases() map[string]map[string]ruleCase {
	return map[string]map[string]ruleCase{
		"volumesnapshots": snapshotRules(), "volumesnapshotcontents": contentRules(), "volumesnapshotclasses": classRules(),
		"volumegroupsnapshots": groupRules(), "volumegroupsnapshotcontents": groupContentRules(), "volumegroupsnapshotclasses": groupClassRules(),
	}
}

func snapshotRules() map[string]ruleCase {
	const (
		dynamic = "{spec: {source: {persistentVolumeClaimName: data}, volumeSnapshotClassName: class}}"
		static  = "{spec: {source: {volumeSnapshotContentName: content}}}"
		one     = "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"
		source  = "spec.source"
	)
	return map[string]ruleCase{
		"NoSource":       {reason: "a snapshot of nothing", fields: "{spec: {source: {}}}", field: source, message: one},
		"TwoSources":     {reason: "which of them", fields: "{spec: {source: {persistentVolumeClaimName: data, volumeSnapshotContentName: content}}}", field: source, message: one},
		"AnotherClaim":   {reason: "it was taken of the first", fields: dynamic, patch: "{spec: {source: {persistentVolumeClaimName: other}}}", field: source + ".persistentVolumeClaimName", message: "persistentVolumeClaimName is immutable"},
		"NoClaim":        {reason: "as above", fields: dynamic, patch: "{spec: {source: {persistentVolumeClaimName: null, volumeSnapshotContentName: content}}}", field: source, message: "persistentVolumeClaimName is required once set"},
		"AnotherContent": {reason: "it is bound to the first", fields: static, patch: "{spec: {source: {volumeSnapshotContentName: other}}}", field: source + ".volumeSnapshotContentName", message: "volumeSnapshotContentName is immutable"},
		"NoContent":      {reason: "as above", fields: static, patch: "{spec: {source: {persistentVolumeClaimName: data, volumeSnapshotContentName: null}}}", field: source, message: "volumeSnapshotContentName is required once set"},
		"EmptyClass":     {reason: "unset means the default class", fields: dynamic, patch: "{spec: {volumeSnapshotClassName: ''}}", field: "spec.volumeSnapshotClassName", message: "volumeSnapshotClassName must not be the empty string when set"},
		"AnotherClass":   {reason: "the controller sets the default class", fields: dynamic, patch: "{spec: {volumeSnapshotClassName: other}}"},
	}
}

func contentRules() map[string]ruleCase {
	const (
		spec    = "deletionPolicy: Delete, driver: d, volumeSnapshotRef: {name: snap, namespace: space}"
		dynamic = "{spec: {" + spec + ", sourceVolumeMode: Block, source: {volumeHandle: vol}}}"
		static  = "{spec: {" + spec + ", source: {snapshotHandle: snap}}}"
		one     = "exactly one of volumeHandle and snapshotHandle must be set"
		source  = "spec.source"
	)
	return map[string]ruleCase{
		"NoSource":        {reason: "a snapshot of nothing", fields: "{spec: {" + spec + ", source: {}}}", field: source, message: one},
		"TwoSources":      {reason: "which of them", fields: "{spec: {" + spec + ", source: {volumeHandle: vol, snapshotHandle: snap}}}", field: source, message: one},
		"AnotherVolume":   {reason: "it was taken of the first", fields: dynamic, patch: "{spec: {source: {volumeHandle: other}}}", field: source + ".volumeHandle", message: "volumeHandle is immutable"},
		"NoVolume":        {reason: "as above", fields: dynamic, patch: "{spec: {source: {volumeHandle: null, snapshotHandle: snap}}}", field: source, message: "volumeHandle is required once set"},
		"AnotherSnapshot": {reason: "the handle is its identity", fields: static, patch: "{spec: {source: {snapshotHandle: other}}}", field: source + ".snapshotHandle", message: "snapshotHandle is immutable"},
		"NoSnapshot":      {reason: "as above", fields: static, patch: "{spec: {source: {volumeHandle: vol, snapshotHandle: null}}}", field: source, message: "snapshotHandle is required once set"},
		"AnotherMode":     {reason: "users could read each other's file systems as a block device", fields: dynamic, patch: "{spec: {sourceVolumeMode: Filesystem}}", field: "spec.sourceVolumeMode", message: "sourceVolumeMode is immutable"},
		"NoMode":          {reason: "as above", fields: dynamic, patch: "{spec: {sourceVolumeMode: null}}", field: "spec", message: "sourceVolumeMode is required once set"},
		"Mode":            {reason: "the controller knows it later", fields: static, patch: "{spec: {sourceVolumeMode: Block}}"},
		"NoNamespace":     {reason: "names are unique in a namespace", fields: "{spec: {deletionPolicy: Delete, driver: d, source: {volumeHandle: vol}, volumeSnapshotRef: {name: snap}}}", field: "spec.volumeSnapshotRef", message: "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set"},
		"Bind":            {reason: "the controller binds it", fields: static, patch: "{spec: {volumeSnapshotRef: {uid: u}}}"},
		"BindAgain":       {reason: "backup programs bind a content to a restored snapshot", fields: "{spec: {deletionPolicy: Delete, driver: d, source: {snapshotHandle: snap}, volumeSnapshotRef: {name: snap, namespace: space, uid: u}}}", patch: "{spec: {volumeSnapshotRef: {name: other, uid: v}}}"},
		"KeepIt":          {reason: "the policy may change until the snapshot is deleted", fields: dynamic, patch: "{spec: {deletionPolicy: Retain}}"},
	}
}

func classRules() map[string]ruleCase {
	return map[string]ruleCase{
		"Change": {reason: "each snapshot has its own copy", fields: "{driver: d, deletionPolicy: Delete}", patch: "{driver: other, deletionPolicy: Retain, parameters: {a: b}}"},
	}
}

func groupRules() map[string]ruleCase {
	const (
		dynamic = "{spec: {source: {selector: {matchLabels: {a: b}}}, volumeGroupSnapshotClassName: class}}"
		static  = "{spec: {source: {volumeGroupSnapshotContentName: content}}}"
		one     = "exactly one of selector and volumeGroupSnapshotContentName must be set"
		source  = "spec.source"
	)
	return map[string]ruleCase{
		"NoSource":        {reason: "a snapshot of nothing", fields: "{spec: {source: {}}}", field: source, message: one},
		"TwoSources":      {reason: "which of them", fields: "{spec: {source: {selector: {matchLabels: {a: b}}, volumeGroupSnapshotContentName: content}}}", field: source, message: one},
		"AnotherSelector": {reason: "it was taken of the first claims", fields: dynamic, patch: "{spec: {source: {selector: {matchLabels: {a: c}}}}}", field: source + ".selector", message: "selector is immutable"},
		"NoSelector":      {reason: "as above", fields: dynamic, patch: "{spec: {source: {selector: null, volumeGroupSnapshotContentName: content}}}", field: source, message: "selector is required once set"},
		"AnotherContent":  {reason: "it is bound to the first", fields: static, patch: "{spec: {source: {volumeGroupSnapshotContentName: other}}}", field: source + ".volumeGroupSnapshotContentName", message: "volumeGroupSnapshotContentName is immutable"},
		"NoContent":       {reason: "as above", fields: static, patch: "{spec: {source: {selector: {matchLabels: {a: b}}, volumeGroupSnapshotContentName: null}}}", field: source, message: "volumeGroupSnapshotContentName is required once set"},
		"EmptyClass":      {reason: "unset means the default class", fields: dynamic, patch: "{spec: {volumeGroupSnapshotClassName: ''}}", field: "spec.volumeGroupSnapshotClassName", message: "volumeGroupSnapshotClassName must not be the empty string when set"},
		"AnotherClass":    {reason: "the controller sets the default class", fields: dynamic, patch: "{spec: {volumeGroupSnapshotClassName: other}}"},
		"BoundToAnother": {
			reason: "the first would be forgotten", fields: dynamic, status: "{boundVolumeGroupSnapshotContentName: content}", statusPatch: "{status: {boundVolumeGroupSnapshotContentName: other}}",
			field: "status.boundVolumeGroupSnapshotContentName", message: "boundVolumeGroupSnapshotContentName is immutable once set",
		},
	}
}

func groupContentRules() map[string]ruleCase {
	const (
		ref     = "volumeGroupSnapshotRef: {name: snap, namespace: space}"
		spec    = "deletionPolicy: Delete, driver: d, " + ref
		dynamic = "{spec: {" + spec + ", volumeGroupSnapshotClassName: class, source: {volumeHandles: [vol]}}}"
		handles = "groupSnapshotHandles: {volumeGroupSnapshotHandle: group, volumeSnapshotHandles: [snap]}"
		static  = "{spec: {" + spec + ", source: {" + handles + "}}}"
		bound   = "{spec: {deletionPolicy: Delete, driver: d, source: {volumeHandles: [vol]}, volumeGroupSnapshotRef: {name: snap, namespace: space, uid: u}}}"
		one     = "exactly one of volumeHandles and groupSnapshotHandles must be set"
		names   = "volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace are immutable"
		source  = "spec.source"
		refs    = "spec.volumeGroupSnapshotRef"
	)
	return map[string]ruleCase{
		"NoSource":         {reason: "a snapshot of nothing", fields: "{spec: {" + spec + ", source: {}}}", field: source, message: one},
		"TwoSources":       {reason: "which of them", fields: "{spec: {" + spec + ", source: {volumeHandles: [vol], " + handles + "}}}", field: source, message: one},
		"AnotherVolume":    {reason: "it was taken of the first", fields: dynamic, patch: "{spec: {source: {volumeHandles: [other]}}}", field: source + ".volumeHandles", message: "volumeHandles is immutable"},
		"NoVolumes":        {reason: "as above", fields: dynamic, patch: "{spec: {source: {volumeHandles: null, " + handles + "}}}", field: source, message: "volumeHandles is required once set"},
		"AnotherGroup":     {reason: "the handle is its identity", fields: static, patch: "{spec: {source: {groupSnapshotHandles: {volumeGroupSnapshotHandle: other}}}}", field: source + ".groupSnapshotHandles", message: "groupSnapshotHandles is immutable"},
		"NoGroup":          {reason: "as above", fields: static, patch: "{spec: {source: {volumeHandles: [vol], groupSnapshotHandles: null}}}", field: source, message: "groupSnapshotHandles is required once set"},
		"AnotherDriver":    {reason: "handles are the driver's", fields: dynamic, patch: "{spec: {driver: other}}", field: "spec.driver", message: "driver is immutable once set"},
		"AnotherClass":     {reason: "it was taken with the first", fields: dynamic, patch: "{spec: {volumeGroupSnapshotClassName: other}}", field: "spec.volumeGroupSnapshotClassName", message: "volumeGroupSnapshotClassName is immutable once set"},
		"NoNamespace":      {reason: "names are unique in a namespace", fields: "{spec: {deletionPolicy: Delete, driver: d, source: {volumeHandles: [vol]}, volumeGroupSnapshotRef: {name: snap}}}", field: refs, message: "both volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace must be set"},
		"AnotherName":      {reason: "another group would get its data", fields: dynamic, patch: "{spec: {volumeGroupSnapshotRef: {name: other}}}", field: refs, message: names},
		"AnotherNamespace": {reason: "another user would get its data", fields: dynamic, patch: "{spec: {volumeGroupSnapshotRef: {namespace: other}}}", field: refs, message: names},
		"Bind":             {reason: "the controller binds it", fields: dynamic, patch: "{spec: {volumeGroupSnapshotRef: {uid: u}}}"},
		"BindAgain":        {reason: "a new group of the same name would get its data", fields: bound, patch: "{spec: {volumeGroupSnapshotRef: {uid: v}}}", field: refs, message: "volumeGroupSnapshotRef.uid is immutable once set"},
		"Unbind":           {reason: "as above", fields: bound, patch: "{spec: {volumeGroupSnapshotRef: {uid: null}}}", field: refs, message: "volumeGroupSnapshotRef.uid is immutable once set"},
		"AnotherHandle": {
			reason: "the group snapshot would be forgotten", fields: dynamic, status: "{volumeGroupSnapshotHandle: group}", statusPatch: "{status: {volumeGroupSnapshotHandle: other}}",
			field: "status.volumeGroupSnapshotHandle", message: "volumeGroupSnapshotHandle is immutable once set",
		},
		"NoHandle": {reason: "the group snapshot was deleted", fields: dynamic, status: "{volumeGroupSnapshotHandle: group}", statusPatch: "{status: {volumeGroupSnapshotHandle: null}}"},
		"KeepIt":   {reason: "the policy may change until the group snapshot is deleted", fields: dynamic, patch: "{spec: {deletionPolicy: Retain}}"},
	}
}

func groupClassRules() map[string]ruleCase {
	const class = "{driver: d, deletionPolicy: Delete, parameters: {a: b}}"
	return map[string]ruleCase{
		"AnotherDriver":     {reason: "a class is for one driver", fields: class, patch: "{driver: other}", field: "driver", message: "driver is immutable once set"},
		"AnotherPolicy":     {reason: "group snapshots name the class", fields: class, patch: "{deletionPolicy: Retain}", field: "deletionPolicy", message: "deletionPolicy is immutable once set"},
		"AnotherParameters": {reason: "as above", fields: class, patch: "{parameters: {a: c}}", field: "parameters", message: "parameters are immutable once set"},
	}
}

// rules tries each case in each version, and finds no rule in a definition that no case has tried.
func (s *crdServer) rules(t *testing.T) {
	for _, d := range snapshotCRDs(t) {
		for _, of := range resources(t, d) {
			have, tried := messages(versionsOf(t, d)[of.Version]["schema"]), map[string]bool{}
			for name, tc := range ruleCases()[of.Resource] {
				t.Run(of.Resource+"/"+of.Version+"/"+name, func(t *testing.T) {
					tried[tc.message] = true
					if tc.message != "" && !have[tc.message] && of.Version != "v1beta1" {
						t.Fatalf("%s: the definition has no rule %q", tc.reason, tc.message)
					}
					err := s.try(t, of, strings.ToLower(name), tc)
					if !have[tc.message] {
						if err != nil {
							t.Errorf("%s: want it allowed, got %v", tc.reason, err)
						}
						return
					}
					if !slices.ContainsFunc(complaints(err), func(c string) bool {
						return strings.HasPrefix(c, tc.field+": Invalid value: ") && strings.HasSuffix(c, ": "+tc.message)
					}) {
						t.Errorf("%s: got %q, want %s: %s", tc.reason, complaints(err), tc.field, tc.message)
					}
				})
			}
			maps.DeleteFunc(tried, func(message string, _ bool) bool { return !have[message] })
			if diff := cmp.Diff(have, tried); diff != "" {
				t.Errorf("%s: rules in the definition and rules that were tried: -definition +tried\n%s", of, diff)
			}
		}
	}
}

func (s *crdServer) try(t *testing.T, of schema.GroupVersionResource, name string, tc ruleCase) error {
	t.Helper()
	_, err := s.create(t, of, name, tc.fields, tc.status)
	if err != nil {
		return err
	}
	defer func() {
		if err := s.in(of).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	switch {
	case tc.patch != "":
		_, err = s.patch(t, of, name, tc.patch)
	case tc.statusPatch != "":
		_, err = s.patch(t, of, name, tc.statusPatch, "status")
	case tc.message != "":
		return fmt.Errorf("%s was created", name)
	}
	return err
}

// messages are those of the rules in a schema.
func messages(node any) map[string]bool {
	all := map[string]bool{}
	switch node := node.(type) {
	case map[string]any:
		for key, child := range node {
			if text, ok := child.(string); ok && key == "message" && node["rule"] != nil {
				all[text] = true
			}
			maps.Copy(all, messages(child))
		}
	case []any:
		for _, child := range node {
			maps.Copy(all, messages(child))
		}
	}
	return all
}
