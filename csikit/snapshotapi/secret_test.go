package snapshotapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

func secretKeys() snapshotapi.SecretKeys {
	return snapshotapi.SecretKeys{Name: "secret-name", Namespace: "secret-namespace", Token: "volumesnapshot"}
}

func TestClassSecret(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, secretName, secretNamespace string
		want                                *corev1.SecretReference
		err                                 string
	}{
		"None":            {reason: "The class names no secret."},
		"Plain":           {reason: "There are no tokens.", secretName: "keys", secretNamespace: "vault", want: &corev1.SecretReference{Name: "keys", Namespace: "vault"}},
		"Tokens":          {reason: "All that are allowed.", secretName: "${volumesnapshot.name}-${volumesnapshotcontent.name}", secretNamespace: "${volumesnapshot.namespace}", want: &corev1.SecretReference{Name: "monday-content", Namespace: "team"}},
		"Half":            {reason: "A secret has a namespace.", secretName: "keys", err: `"secret-name" and "secret-namespace" must be given together`},
		"NameInNamespace": {reason: "Users choose names of snapshots.", secretName: "keys", secretNamespace: "${volumesnapshot.name}", err: `invalid tokens: ["volumesnapshot.name"]`},
		"Unclosed":        {reason: "What is no token leads to no other secret.", secretName: "keys-${volumesnapshot.name", secretNamespace: "vault", err: "invalid tokens"},
		"Unknown":         {reason: "There is no such token.", secretName: "${pvc.name}", secretNamespace: "vault", err: `invalid tokens: ["pvc.name"]`},
		"Rules":           {reason: "The result is a name.", secretName: "Keys", secretNamespace: "vault", err: `name template "Keys" gives "Keys"`},
	} {
		t.Run(name, func(t *testing.T) {
			parameters := map[string]string{}
			if tc.secretName != "" {
				parameters["secret-name"] = tc.secretName
			}
			if tc.secretNamespace != "" {
				parameters["secret-namespace"] = tc.secretNamespace
			}
			got, err := snapshotapi.ClassSecret(secretKeys(), parameters, "content", "team", "monday")
			if diff := cmp.Diff(tc.want, got); diff != "" || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s\ngot %v, %v; want %v, %q", tc.reason, got, err, tc.want, tc.err)
			}
		})
	}
}

func FuzzClassSecret(f *testing.F) {
	f.Add("${volumesnapshot.name}-x")
	f.Add("${")
	f.Fuzz(func(t *testing.T, template string) {
		got, err := snapshotapi.ClassSecret(secretKeys(), map[string]string{"secret-name": template, "secret-namespace": "vault"}, "content", "team", "monday")
		if err == nil && strings.ContainsAny(got.Name, "${}") {
			t.Errorf("%q gives %q", template, got.Name)
		}
	})
}
