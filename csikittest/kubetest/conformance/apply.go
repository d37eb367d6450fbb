package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// serverSideApply checks who has which fields of a CSIDriver after applies and updates, and which applies are refused.
func serverSideApply(t *testing.T, s Server) {
	driver := storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: new(true), PodInfoOnMount: new(false)}}
	const absent = "absent"
	cases := map[string]struct {
		reason string
		// first are the steps before the last one, and last is that, each "manager verb metadata spec": verb is create, apply, force or merge, and NAME the name of the object.
		first []string
		last  string
		want  string   // the answer
		spec  string   // the fields requiresRepublish and podInfoOnMount then
		have  []string // the owners of these fields, and of volumeLifecycleModes, then
	}{
		"Creates": {
			reason: "What is not there is created, and has defaults that no manager has.",
			last:   `a apply {"name":"NAME"} {"attachRequired":true,"requiresRepublish":true}`, want: "ok", spec: "true false", have: []string{"requiresRepublish a Apply"},
		},
		"CreatorHasDefaults": {
			reason: "Who creates an object has all of its fields, those with defaults among them.",
			first:  []string{"c create"}, last: `a apply {"name":"NAME"} {"attachRequired":true}`, want: "ok", spec: "false false",
			have: []string{"podInfoOnMount c Update", "requiresRepublish c Update", "volumeLifecycleModes c Update"},
		},
		"Shares": {
			reason: "The same value is no conflict.", first: []string{`a apply {"name":"NAME"} {"requiresRepublish":true}`}, last: `b apply {"name":"NAME"} {"requiresRepublish":true}`, want: "ok",
			spec: "true false", have: []string{"requiresRepublish a Apply", "requiresRepublish b Apply"},
		},
		"Conflict": {
			reason: "Another value is one, and nothing is stored.", first: []string{`a apply {"name":"NAME"} {"requiresRepublish":true}`},
			last: `b apply {"name":"NAME"} {"requiresRepublish":false,"podInfoOnMount":true}`, want: "409 Conflict .spec.requiresRepublish:FieldManagerConflict",
			spec: "true false", have: []string{"requiresRepublish a Apply"},
		},
		"ConflictWithUpdate": {
			reason: "An update takes a field.", first: []string{`a apply {"name":"NAME"} {"requiresRepublish":true}`, `b merge {} {"requiresRepublish":false}`},
			last: `a apply {"name":"NAME"} {"requiresRepublish":true}`, want: "409 Conflict .spec.requiresRepublish:FieldManagerConflict", spec: "false false", have: []string{"requiresRepublish b Update"},
		},
		"ConflictWithOwnUpdate": {
			reason: "Even one by the same manager.", first: []string{`o apply {"name":"NAME"} {"attachRequired":true}`, `a merge {} {"requiresRepublish":true}`},
			last: `a apply {"name":"NAME"} {"requiresRepublish":false}`, want: "409 Conflict .spec.requiresRepublish:FieldManagerConflict", spec: "true false", have: []string{"requiresRepublish a Update"},
		},
		"Force": {
			reason: "It can be taken by force.", first: []string{`a apply {"name":"NAME"} {"requiresRepublish":true}`, `b merge {} {"requiresRepublish":false}`},
			last: `a force {"name":"NAME"} {"requiresRepublish":true}`, want: "ok", spec: "true false", have: []string{"requiresRepublish a Apply"},
		},
		"Releases": {
			reason: "A field that is not applied any more gets its default.", first: []string{`a apply {"name":"NAME"} {"requiresRepublish":true,"podInfoOnMount":true}`},
			last: `a apply {"name":"NAME"} {"podInfoOnMount":true}`, want: "ok", spec: "false true", have: []string{"podInfoOnMount a Apply"},
		},
		"ReleasesShared": {
			reason: "But not if another manager has it, too.", first: []string{`a apply {"name":"NAME"} {"requiresRepublish":true}`, `b apply {"name":"NAME"} {"requiresRepublish":true}`},
			last: `a apply {"name":"NAME"} {}`, want: "ok", spec: "true false", have: []string{"requiresRepublish b Apply"},
		},
		"NoManagedFields": {
			reason: "Without managedFields all fields are those of a manager of their own.", first: []string{"c create", `c merge {"managedFields":[{}]} {}`},
			last: `a apply {"name":"NAME"} {"requiresRepublish":true}`, want: "409 Conflict .spec.requiresRepublish:FieldManagerConflict", spec: "false false",
		},
		"Immutable": {
			reason: "Some fields cannot be changed.", first: []string{`a apply {"name":"NAME"} {"attachRequired":true,"volumeLifecycleModes":["Persistent"]}`},
			last: `a apply {"name":"NAME"} {"attachRequired":false,"volumeLifecycleModes":["Ephemeral"]}`,
			want: "422 Invalid named spec.attachedRequired:FieldValueInvalid spec.volumeLifecycleModes:FieldValueInvalid", spec: "false false", have: []string{"volumeLifecycleModes a Apply"},
		},
		"ImmutableReleased": {
			reason: "Nor can they get their default.", first: []string{`a apply {"name":"NAME"} {"attachRequired":false}`}, last: `a apply {"name":"NAME"} {}`,
			want: "422 Invalid named spec.attachedRequired:FieldValueInvalid", spec: "false false",
		},
		"NoName": {
			reason: "The configuration names its object.", last: `a apply {} {"attachRequired":true}`, want: "400 BadRequest without details", spec: absent,
		},
		"UIDOfNone": {
			reason: "A UID names an object that must be there.", last: `a apply {"name":"NAME","uid":"1-2-3"} {"attachRequired":true}`, want: "409 Conflict named", spec: absent,
		},
		"OtherUID": {
			reason: "It must be that object.", first: []string{"c create"}, last: `a apply {"name":"NAME","uid":"1-2-3"} {"attachRequired":true}`,
			want: "422 Invalid named metadata.uid:FieldValueInvalid", spec: "false false", have: []string{"podInfoOnMount c Update", "requiresRepublish c Update", "volumeLifecycleModes c Update"},
		},
		"OtherVersion": {
			reason: "A resourceVersion is a lock.", first: []string{`a apply {"name":"NAME"} {"requiresRepublish":true}`}, last: `a force {"name":"NAME","resourceVersion":"1"} {"requiresRepublish":false}`,
			want: "409 Conflict named", spec: "true false", have: []string{"requiresRepublish a Apply"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			object := nameOf(t)
			for _, step := range tc.first {
				if err := applyStep(t, s, object, driver, step); err != nil {
					t.Fatalf("%s: %s: %v", tc.reason, step, err)
				}
			}
			if got := answer(applyStep(t, s, object, driver, tc.last)); got != tc.want {
				t.Errorf("%s: answer %q, want %q", tc.reason, got, tc.want)
			}
			live, err := s.Client.CSIDrivers().Get(t.Context(), object, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && tc.spec == absent {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(*live.Spec.RequiresRepublish, *live.Spec.PodInfoOnMount); got != tc.spec {
				t.Errorf("%s: the object has %s, want %s", tc.reason, got, tc.spec)
			}
			if diff := cmp.Diff(tc.have, fieldOwners(live, "requiresRepublish", "podInfoOnMount", "volumeLifecycleModes")); diff != "" {
				t.Errorf("%s: owners (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// applyStep makes one request.
func applyStep(t *testing.T, s Server, name string, driver storagev1.CSIDriver, step string) error {
	words := strings.SplitN(step, " ", 4)
	manager, verb := words[0], words[1]
	var err error
	switch {
	case verb == "create":
		driver.Name = name
		_, err = s.Client.CSIDrivers().Create(t.Context(), &driver, metav1.CreateOptions{FieldManager: manager})
	case verb == "merge":
		_, err = s.Client.CSIDrivers().Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":%s,"spec":%s}`, words[2], words[3]), metav1.PatchOptions{FieldManager: manager})
	default:
		metadata := strings.Replace(words[2], "NAME", name, 1)
		configuration := fmt.Appendf(nil, `{"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver","metadata":%s,"spec":%s}`, metadata, words[3])
		_, err = s.Client.CSIDrivers().Patch(t.Context(), name, types.ApplyPatchType, configuration, metav1.PatchOptions{FieldManager: manager, Force: new(verb == "force")})
	}
	return err
}

// fieldOwners returns who has the fields of the spec, each as "field manager operation", sorted.
func fieldOwners(live *storagev1.CSIDriver, names ...string) (list []string) {
	for _, entry := range live.ManagedFields {
		for _, name := range names {
			if strings.Contains(entry.FieldsV1.GetRawString(), `"f:`+name+`"`) {
				list = append(list, fmt.Sprintf("%s %s %s", name, entry.Manager, entry.Operation))
			}
		}
	}
	slices.Sort(list)
	return list
}
