package controller

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestDriverParameters(t *testing.T) {
	const reserved = "csi.storage.k8s.io/"
	tests := map[string]struct {
		reason     string
		parameters map[string]string
		metadata   bool
		want       map[string]string
		err        string
	}{
		"None":     {reason: "a class without parameters", want: map[string]string{}},
		"Passed":   {reason: "the driver's own", parameters: map[string]string{"type": "cow"}, want: map[string]string{"type": "cow"}},
		"Stripped": {reason: "those of the snapshotter", parameters: map[string]string{"type": "cow", reserved + "snapshotter-secret-name": "s", reserved + "group-snapshotter-get-secret-namespace": "n"}, want: map[string]string{"type": "cow"}},
		"Unknown":  {reason: "a misspelt key would have no effect", parameters: map[string]string{reserved + "snapshoter-secret-name": "s"}, err: `found unknown parameter key "csi.storage.k8s.io/snapshoter-secret-name" with reserved namespace csi.storage.k8s.io`},
		"Metadata": {reason: "names of the objects", metadata: true, want: map[string]string{
			reserved + "volumesnapshot/name": "backup", reserved + "volumesnapshot/namespace": "ns", reserved + "volumesnapshotcontent/name": "c",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := driverParameters(contentNames(), testRecord(), class{parameters: tt.parameters}, tt.metadata)
			if !matches(err, tt.err) {
				t.Errorf("%s: got error %v, want %q", tt.reason, err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" && tt.err == "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

// matches reports whether err has that text; "" is no error.
func matches(err error, text string) bool {
	if text == "" || err == nil {
		return (err == nil) == (text == "")
	}
	return strings.Contains(err.Error(), text)
}

func TestReadSecret(t *testing.T) {
	const listName, listNamespace = "csi.storage.k8s.io/snapshotter-list-secret-name", "csi.storage.k8s.io/snapshotter-list-secret-namespace"
	const getName, getNamespace = "csi.storage.k8s.io/group-snapshotter-get-secret-name", "csi.storage.k8s.io/group-snapshotter-get-secret-namespace"
	pair := func(name, namespace string) map[string]string {
		return map[string]string{listName: name, listNamespace: namespace}
	}
	tests := map[string]struct {
		reason     string
		names      names
		parameters map[string]string
		want       *corev1.SecretReference
		err        string
	}{
		"None":      {reason: "no secret", names: contentNames()},
		"Fixed":     {reason: "one secret for all", names: contentNames(), parameters: pair("s", "n"), want: &corev1.SecretReference{Name: "s", Namespace: "n"}},
		"Half":      {reason: "a pair or nothing", names: contentNames(), parameters: map[string]string{listName: "s"}, err: "must be given together"},
		"Templates": {reason: "S27: all tokens of the name", names: contentNames(), parameters: pair("${volumesnapshot.name}.${volumesnapshotcontent.name}", "${volumesnapshot.namespace}"), want: &corev1.SecretReference{Name: "backup.c", Namespace: "ns"}},
		"Groups": {reason: "S27: the same for group snapshots", names: groupNames(), parameters: map[string]string{
			getName: "${volumegroupsnapshot.name}", getNamespace: "${volumegroupsnapshotcontent.name}",
		}, want: &corev1.SecretReference{Name: "backup", Namespace: "c"}},
		"UserNamespace": {reason: "users must not choose the namespace", names: contentNames(), parameters: pair("s", "${volumesnapshot.name}"), err: `invalid tokens: ["volumesnapshot.name"]`},
		"Unknown":       {reason: "a misspelt token", names: contentNames(), parameters: pair("${pvc.name}", "n"), err: `invalid tokens: ["pvc.name"]`},
		"BadName":       {reason: "the result is a name", names: contentNames(), parameters: pair("S_", "n"), err: `gives "S_"`},
		"BadNamespace":  {reason: "the result is a name", names: contentNames(), parameters: pair("s", "n.n"), err: `gives "n.n"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := readSecret(tt.names, testRecord(), class{parameters: tt.parameters})
			if diff := cmp.Diff(tt.want, got); diff != "" || !matches(err, tt.err) {
				t.Errorf("%s: error %v, want %q (-want +got):\n%s", tt.reason, err, tt.err, diff)
			}
		})
	}
}

// TestWriteSecret takes the secret from the annotations, also for what is read of a member.
func TestWriteSecret(t *testing.T) {
	for _, n := range []names{contentNames(), groupNames()} {
		r := testRecord(member)
		r.annotations[n.secretName] = "s"
		if _, err := readSecret(n, r, class{}); !matches(err, "must both name a secret") {
			t.Errorf("half a reference: %v", err)
		}
		r.annotations[n.secretNamespace] = "n"
		got, err := readSecret(n, r, class{})
		if diff := cmp.Diff(&corev1.SecretReference{Name: "s", Namespace: "n"}, got); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
}

func TestNaming(t *testing.T) {
	const uid = types.UID("01234567-89ab-cdef-0123-456789abcdef")
	for length, want := range map[int]string{
		WholeUUID: "p-" + string(uid), 8: "p-01234567", 10: "p-0123456789", 32: "p-0123456789abcdef0123456789abcdef",
		33: "p-0123456789abcdef0123456789abcdef", // S7: no panic
	} {
		if got := (Naming{Prefix: "p", UUIDLength: length}).name(uid); got != want {
			t.Errorf("length %d: got %q, want %q", length, got, want)
		}
	}
}
