package driverobject

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// object returns an object with the defaults of the API server, changed by edit, whose fields have owners: "us", "apply:NAME" or "update:NAME", by the name of the owner.
func object(edit func(*storagev1.CSIDriverSpec), owners map[string][]string) *storagev1.CSIDriver {
	live := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "d.example", UID: "uid-1", ResourceVersion: "7"},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: new(true), PodInfoOnMount: new(false), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent"},
		},
	}
	if edit != nil {
		edit(&live.Spec)
	}
	for who, names := range owners {
		entry := metav1.ManagedFieldsEntry{Manager: Manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: &metav1.FieldsV1{}}
		if operation, manager, ok := strings.Cut(who, ":"); ok {
			entry.Manager = manager
			if operation == "update" {
				entry.Operation = metav1.ManagedFieldsOperationUpdate
			}
		}
		var sets []string
		for _, name := range names {
			sets = append(sets, fmt.Sprintf(`"f:%s":{}`, name))
		}
		entry.FieldsV1.SetRawString(`{"f:metadata":{"f:labels":{}},"f:spec":{".":{},` + strings.Join(sets, ",") + `}}`)
		live.ManagedFields = append(live.ManagedFields, entry)
	}
	return live
}

func TestDecide(t *testing.T) {
	tests := map[string]struct {
		reason   string
		wanted   fields
		live     *storagev1.CSIDriver
		alone    []string
		fields   fields
		apply    bool
		force    bool
		restored []string // parts
		problems []string // reason and field
	}{
		"None": {
			reason: "there is no object", wanted: fields{"attachRequired": true}, apply: true, fields: fields{"attachRequired": true},
		},
		"Same": {
			reason: "nothing differs", wanted: fields{"attachRequired": true, "podInfoOnMount": false},
			live:   object(nil, map[string][]string{"us": {"attachRequired", "podInfoOnMount"}}),
			fields: fields{"attachRequired": true, "podInfoOnMount": false},
		},
		"Adopted": {
			reason: "others have written the same: the field is shared", wanted: fields{"attachRequired": true},
			live:  object(nil, map[string][]string{"update:helm": {"attachRequired", "podInfoOnMount"}}),
			apply: true, fields: fields{"attachRequired": true},
		},
		"Default": {
			reason: "no manager has the field", wanted: fields{"attachRequired": true, "podInfoOnMount": true},
			live:  object(nil, map[string][]string{"us": {"attachRequired"}}),
			apply: true, fields: fields{"attachRequired": true, "podInfoOnMount": true},
		},
		"Follows": {
			reason: "a flag has changed", wanted: fields{"attachRequired": true, "podInfoOnMount": true},
			live:  object(nil, map[string][]string{"us": {"attachRequired", "podInfoOnMount"}}),
			apply: true, fields: fields{"attachRequired": true, "podInfoOnMount": true},
		},
		"FlagGone": {
			reason: "a field that no flag sets any more is released", wanted: fields{"attachRequired": true},
			live:  object(nil, map[string][]string{"us": {"attachRequired", "podInfoOnMount"}}),
			apply: true, fields: fields{"attachRequired": true},
		},
		"Conflict": {
			reason: "another manager has the field, which was never ours alone; the rest is written", wanted: fields{"attachRequired": true, "podInfoOnMount": true},
			live:  object(nil, map[string][]string{"update:helm": {"podInfoOnMount"}}),
			apply: true, fields: fields{"attachRequired": true}, problems: []string{ReasonConflict + " podInfoOnMount"},
		},
		"ConflictKnown": {
			reason: "nothing is written again and again", wanted: fields{"attachRequired": true, "podInfoOnMount": true},
			live:   object(nil, map[string][]string{"us": {"attachRequired"}, "apply:argo": {"podInfoOnMount"}}),
			fields: fields{"attachRequired": true}, problems: []string{ReasonConflict + " podInfoOnMount"},
		},
		"SharedFollows": {
			reason: "a field that is shared is left to the other when its value shall change", wanted: fields{"attachRequired": true, "podInfoOnMount": true},
			live:  object(nil, map[string][]string{"us": {"attachRequired", "podInfoOnMount"}, "apply:argo": {"podInfoOnMount"}}),
			apply: true, fields: fields{"attachRequired": true}, problems: []string{ReasonConflict + " podInfoOnMount"},
		},
		"Edited": {
			reason: "a field that was ours alone is restored", wanted: fields{"attachRequired": true, "podInfoOnMount": true},
			live:  object(nil, map[string][]string{"us": {"attachRequired"}, "update:kubectl-edit": {"podInfoOnMount"}}),
			alone: []string{"attachRequired", "podInfoOnMount"},
			apply: true, fields: fields{"attachRequired": true, "podInfoOnMount": true}, force: true,
			restored: []string{`spec.podInfoOnMount is true again, which field manager "kubectl-edit" (Update) had changed to false`},
		},
		"HandedOver": {
			reason: "an administrator has written the field in our name", wanted: fields{"podInfoOnMount": true},
			live:  object(nil, map[string][]string{"update:" + Manager: {"podInfoOnMount"}}),
			apply: true, fields: fields{"podInfoOnMount": true}, force: true,
		},
		"NoManagers": {
			reason: "without managedFields the API server does not know who has set the fields", wanted: fields{"attachRequired": true, "podInfoOnMount": true, "requiresRepublish": true},
			live: object(nil, nil), apply: true, fields: fields{"attachRequired": true, "requiresRepublish": true}, problems: []string{ReasonConflict + " podInfoOnMount"},
		},
		"Immutable": {
			reason: "the field is kept as it is, and the rest follows", wanted: fields{"attachRequired": false, "podInfoOnMount": true},
			live:  object(nil, map[string][]string{"us": {"attachRequired", "podInfoOnMount"}}),
			apply: true, fields: fields{"attachRequired": true, "podInfoOnMount": true}, problems: []string{ReasonImmutable + " attachRequired"},
		},
		"ImmutableForeign": {
			reason: "what others have written is not taken", wanted: fields{"attachRequired": false},
			live: object(nil, map[string][]string{"update:helm": {"attachRequired"}}), alone: []string{"attachRequired"},
			fields: fields{}, problems: []string{ReasonImmutable + " attachRequired"},
		},
		"ModesAreASet": {
			reason: "their order does not matter", wanted: fields{"volumeLifecycleModes": []any{"Ephemeral", "Persistent"}},
			live: object(func(s *storagev1.CSIDriverSpec) {
				s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Persistent", "Ephemeral"}
			}, map[string][]string{"us": {"volumeLifecycleModes"}}),
			fields: fields{"volumeLifecycleModes": []any{"Ephemeral", "Persistent"}},
		},
		"ModesFlagGone": {
			reason: "the API server's default is a change, too", wanted: fields{"attachRequired": true},
			live: object(func(s *storagev1.CSIDriverSpec) {
				s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Ephemeral"}
			}, map[string][]string{"us": {"attachRequired", "volumeLifecycleModes"}}),
			fields: fields{"attachRequired": true, "volumeLifecycleModes": []any{"Ephemeral"}}, problems: []string{ReasonImmutable + " volumeLifecycleModes"},
		},
		"ModesFlagGoneDefault": {
			reason: "the default is no change", wanted: fields{"attachRequired": true},
			live:  object(nil, map[string][]string{"us": {"attachRequired", "volumeLifecycleModes"}}),
			apply: true, fields: fields{"attachRequired": true},
		},
		"ModesFlagGoneShared": {
			reason: "the value stays with the other owner", wanted: fields{"attachRequired": true},
			live: object(func(s *storagev1.CSIDriverSpec) {
				s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Ephemeral"}
			},
				map[string][]string{"us": {"attachRequired", "volumeLifecycleModes"}, "apply:argo": {"volumeLifecycleModes"}}),
			apply: true, fields: fields{"attachRequired": true},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			seen := memory{uid: "uid-1", alone: map[string]bool{}}
			for _, name := range tt.alone {
				seen.alone[name] = true
			}
			p := decide(tt.wanted, tt.live, seen)
			if p.apply != tt.apply || p.force != tt.force {
				t.Errorf("%s: apply %t, force %t", tt.reason, p.apply, p.force)
			}
			if diff := cmp.Diff(tt.fields, p.fields); diff != "" {
				t.Errorf("%s: fields (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.restored, p.restored); diff != "" {
				t.Errorf("%s: restored (-want +got):\n%s", tt.reason, diff)
			}
			var problems []string
			for _, problem := range p.problems {
				problems = append(problems, problem.Reason+" "+problem.Field)
			}
			if diff := cmp.Diff(tt.problems, problems); diff != "" {
				t.Errorf("%s: problems (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	live := object(nil, map[string][]string{"update:helm": {"podInfoOnMount"}, "apply:argo": {"podInfoOnMount"}})
	for want, wanted := range map[string]fields{
		`spec.podInfoOnMount is false and not true: it is set by field manager "argo" (Apply) and "helm" (Update), and stays unchanged. Change it there, or change the flag of csi-cluster-driver-registrar; ` +
			`if it is set there no more, run: kubectl patch csidriver d.example --field-manager=csi-cluster-driver-registrar --type=merge -p '{"spec":{"podInfoOnMount":true}}'`: {"podInfoOnMount": true},
		`spec.volumeLifecycleModes is ["Persistent"] and not ["Ephemeral","Persistent"]: the API server does not let this field change. ` +
			`Stop the pods that use volumes of the driver, then run "kubectl delete csidriver d.example": csi-cluster-driver-registrar creates the object again`: {
			"volumeLifecycleModes": []any{"Ephemeral", "Persistent"},
		},
	} {
		if diff := cmp.Diff(want, decide(wanted, live, memory{}).problems[0].Message); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestConfiguration names the object that was read, and its version if fields of others are taken.
func TestConfiguration(t *testing.T) {
	live := object(nil, nil)
	for want, p := range map[string]plan{
		`{"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver","metadata":{"name":"d.example","uid":"uid-1"},"spec":{"attachRequired":true}}`: {fields: fields{"attachRequired": true}},
		`{"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver","metadata":{"name":"d.example","resourceVersion":"7","uid":"uid-1"},"spec":{"attachRequired":true}}`: {
			fields: fields{"attachRequired": true}, force: true,
		},
	} {
		if got, err := p.configuration("d.example", live); err != nil || string(got) != want {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
	}
	p := plan{fields: fields{}}
	if got, err := p.configuration("d.example", nil); err != nil || strings.Contains(string(got), "uid") {
		t.Errorf("without an object: %s (%v)", got, err)
	}
}

// TestRemember follows who has a field.
func TestRemember(t *testing.T) {
	us, update, apply := "us", "update:kubectl-edit", "apply:argo"
	tests := map[string]struct {
		reason   string
		versions []map[string][]string // owners in the order of time
		want     bool
	}{
		"Ours":       {reason: "only we have it", versions: []map[string][]string{{us: {"x"}}}, want: true},
		"Edited":     {reason: "an edit takes it, and it was ours", versions: []map[string][]string{{us: {"x"}}, {update: {"x"}}}, want: true},
		"NeverOurs":  {reason: "it is not known whether it was ours", versions: []map[string][]string{{update: {"x"}}}},
		"Shared":     {reason: "who shares it may change it", versions: []map[string][]string{{us: {"x"}}, {us: {"x"}, update: {"x"}}, {update: {"x"}}}},
		"TakenOver":  {reason: "who applies means to have it", versions: []map[string][]string{{us: {"x"}}, {apply: {"x"}}, {update: {"x"}}}},
		"HandedBack": {reason: "it is ours again", versions: []map[string][]string{{apply: {"x"}}, {us: {"x"}}}, want: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var seen memory
			for _, owners := range tt.versions {
				seen = seen.remember(object(nil, owners))
			}
			if seen.alone["x"] != tt.want {
				t.Errorf("%s: got %t", tt.reason, seen.alone["x"])
			}
			next := object(nil, map[string][]string{update: {"x"}})
			next.UID = "uid-2"
			if seen.remember(next).alone["x"] {
				t.Error("another object of this name was never ours")
			}
		})
	}
}

func TestWanted(t *testing.T) {
	tests := map[string]struct {
		reason   string
		flags    storagev1.CSIDriverSpec
		features Features
		want     fields // nil: an error
	}{
		"Attaches":     {reason: "as the driver announces", features: Features{Controller: true, Publish: true}, want: fields{"attachRequired": true}},
		"DoesNot":      {reason: "as the driver announces", features: Features{Controller: true}, want: fields{"attachRequired": false}},
		"Flag":         {reason: "the flag decides", flags: storagev1.CSIDriverSpec{AttachRequired: new(false)}, features: Features{Controller: true, Publish: true}, want: fields{"attachRequired": false}},
		"NoController": {reason: "no answer is no answer"},
		"NodeDriver":   {reason: "the flag is one", flags: storagev1.CSIDriverSpec{AttachRequired: new(false)}, want: fields{"attachRequired": false}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := wanted(tt.flags, tt.features)
			if (err != nil) != (tt.want == nil) {
				t.Fatalf("%s: error %v", tt.reason, err)
			}
			if err == nil {
				if diff := cmp.Diff(tt.want, fieldsOf(got)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
				}
			}
		})
	}
}

// TestNotStored notes fields that the API server drops.
func TestNotStored(t *testing.T) {
	p := plan{fields: fields{"attachRequired": true, "preventPodSchedulingIfMissing": true}}
	p.stored(object(nil, nil))
	problems := p.problems
	if len(problems) != 1 || problems[0].Reason != ReasonNotStored ||
		!strings.HasPrefix(problems[0].Message, "spec.preventPodSchedulingIfMissing was applied as true, and the API server stores null: it needs a feature gate that is off.") {
		t.Errorf("got %+v", problems)
	}
}
