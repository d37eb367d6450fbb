package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

// twoObjects are a namespace, named by %[1]s, and an object that does not say that it goes there.
const twoObjects = `
apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: c
data: {a: "1"}
`

func decode(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	list, err := apply.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func newWriter(t *testing.T, namespace string) *apply.Client {
	t.Helper()
	return newClient(t, apply.Config{REST: admin(t), Manager: "tests", Namespace: namespace})
}

func newClient(t *testing.T, config apply.Config) *apply.Client {
	t.Helper()
	client, err := apply.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestApplyIsRepeatableAndDeleteToo(t *testing.T) {
	space := unique("tests")
	both := fmt.Sprintf(twoObjects, space)
	writer, client := newWriter(t, space), clientOf(t, admin(t))
	var last string
	for i, value := range []string{"1", "1", "2"} {
		if err := writer.Apply(t.Context(), decode(t, strings.ReplaceAll(both, `"1"`, `"`+value+`"`))...); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().ConfigMaps(space).Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil || got.Data["a"] != value {
			t.Fatalf("got %v, %v", got.Data, err)
		}
		if i == 1 && got.ResourceVersion != last {
			t.Errorf("the same object again was a write: %s became %s", last, got.ResourceVersion)
		}
		last = got.ResourceVersion
	}
	for range 2 {
		if err := writer.Delete(t.Context(), decode(t, both)...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().ConfigMaps(space).Get(t.Context(), "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

func TestAnObjectsOwnNamespaceWins(t *testing.T) {
	writer, client := newWriter(t, "default"), clientOf(t, admin(t))
	objects := decode(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: own, namespace: kube-system}}")
	if err := writer.Apply(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "own", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := writer.Delete(t.Context(), objects...); err != nil {
		t.Error(err)
	}
}

// TestApplyTakesOverFieldsOfOthers: the examples are what the demo says they are, whoever has touched them.
func TestApplyTakesOverFieldsOfOthers(t *testing.T) {
	writer, client := newWriter(t, "default"), clientOf(t, admin(t))
	objects := decode(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: taken}, data: {a: "ours"}}`)
	if err := writer.Apply(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
	edited, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "taken", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	edited.Data["a"] = "theirs"
	if _, err := client.CoreV1().ConfigMaps("default").Update(t.Context(), edited, metav1.UpdateOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	if err := writer.Apply(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "taken", metav1.GetOptions{})
	if err != nil || got.Data["a"] != "ours" {
		t.Errorf("got %v, %v", got.Data, err)
	}
	if err := writer.Delete(t.Context(), objects...); err != nil {
		t.Error(err)
	}
}

// TestFieldsHaveTheirManager: whoever looks at an object sees who wrote it.
func TestFieldsHaveTheirManager(t *testing.T) {
	object := decode(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: managed}, data: {a: b}}`)[0]
	client := newClient(t, apply.Config{REST: admin(t), Manager: "somebody-else"})
	if err := client.Apply(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	resource, err := client.Resource(object)
	if err != nil {
		t.Fatal(err)
	}
	got, err := resource.Get(t.Context(), "managed", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if fields := got.GetManagedFields(); len(fields) != 1 || fields[0].Manager != "somebody-else" || fields[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Errorf("got %+v", fields)
	}
	if object.GetNamespace() != "" {
		t.Error("the caller's object was changed")
	}
	if err := client.Delete(t.Context(), object); err != nil {
		t.Error(err)
	}
}

// TestDryRunKeepsNothing, but finds what is wrong.
func TestDryRunKeepsNothing(t *testing.T) {
	client := newWriter(t, "default")
	object := decode(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: tried}, data: {a: b}}`)[0]
	if err := client.DryRun(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if _, err := clientOf(t, admin(t)).CoreV1().ConfigMaps("default").Get(t.Context(), "tried", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	object.SetName("UPPER")
	if err := client.DryRun(t.Context(), object); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "apply ConfigMap/UPPER in a dry run") {
		t.Errorf("got %v", err)
	}
}

// TestStrictTakesWarningsForErrors, though the object is there. Otherwise they are no errors.
func TestStrictTakesWarningsForErrors(t *testing.T) {
	deprecated := decode(t, `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: deprecated}, provisioner: p,
		allowedTopologies: [{matchLabelExpressions: [{key: beta.kubernetes.io/arch, values: [amd64]}]}]}`)[0]
	strict := newClient(t, apply.Config{REST: admin(t), Manager: "tests", Strict: true})
	if err := newWriter(t, "default").DryRun(t.Context(), deprecated); err != nil {
		t.Errorf("without Strict: %v", err)
	}
	for attempt, write := range map[string]func(context.Context, ...*unstructured.Unstructured) error{"DryRun": strict.DryRun, "Apply": strict.Apply} {
		if err := write(t.Context(), deprecated); err == nil || !strings.Contains(err.Error(), "warning 299: ") {
			t.Errorf("%s: got %v", attempt, err)
		}
	}
	if _, err := clientOf(t, admin(t)).StorageV1().StorageClasses().Get(t.Context(), "deprecated", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := strict.Apply(t.Context(), decode(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: clean}}")...); err != nil {
		t.Errorf("nothing to warn of: %v", err)
	}
	if err := strict.Delete(t.Context(), deprecated); err != nil {
		t.Error(err)
	}
}

func TestErrorsNameTheObject(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := map[string]struct {
		reason string
		ctx    context.Context
		yaml   string
		want   []string
	}{
		"UnknownKind":  {reason: "a kind that the server does not have", ctx: t.Context(), yaml: "{apiVersion: x.y/v1, kind: Z, metadata: {name: a}}", want: []string{"Z/a", "x.y/v1"}},
		"Refused":      {reason: "an object that the server refuses", ctx: t.Context(), yaml: "{apiVersion: v1, kind: ConfigMap, metadata: {name: UPPER}}", want: []string{"apply ConfigMap/UPPER", "lowercase"}},
		"NoNamespace":  {reason: "a namespace that is not there", ctx: t.Context(), yaml: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: nowhere}}", want: []string{"ConfigMap/a", "nowhere"}},
		"UnknownField": {reason: "a typing error", ctx: t.Context(), yaml: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, date: {}}", want: []string{"ConfigMap/a", ".date: field not declared"}},
		"Cancelled":    {reason: "a caller who has gone", ctx: ended, yaml: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}", want: []string{"ConfigMap/a", "context canceled"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := newWriter(t, "default").Apply(tc.ctx, decode(t, tc.yaml)...)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want %q", tc.reason, err, want)
				}
			}
		})
	}
}

func TestDeleteSaysWhatItCannotDelete(t *testing.T) {
	user := newClient(t, apply.Config{REST: userConfig(t, "nobody-in-particular"), Manager: "tests"})
	err := user.Delete(t.Context(), decode(t, "{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}")...)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "delete Namespace/kube-system") {
		t.Errorf("got %v", err)
	}
	err = newWriter(t, "default").Delete(t.Context(), decode(t, "{apiVersion: x.y/v1, kind: Z, metadata: {name: a}}")...)
	if err == nil || !strings.Contains(err.Error(), "delete Z/a") {
		t.Errorf("got %v", err)
	}
}
