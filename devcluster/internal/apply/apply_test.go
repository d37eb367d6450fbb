package apply_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/longshore-csi/longshore/devcluster/internal/apply"
	"github.com/longshore-csi/longshore/devcluster/internal/planetest"
)

const objects = `
apiVersion: v1
kind: Namespace
metadata:
  name: tests
---
# nothing in this document
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: c
data: {a: "1"}
`

func TestDecode(t *testing.T) {
	list, err := apply.Decode([]byte(objects))
	if err != nil || len(list) != 2 {
		t.Fatalf("got %d objects, %v", len(list), err)
	}
	if got := apply.Name(list[1]); got != "ConfigMap/c" {
		t.Errorf("name %q", got)
	}
	if _, err := apply.Decode([]byte("a: 1\n---\n\t]")); err == nil || !strings.Contains(err.Error(), "document 2") {
		t.Errorf("the error does not name the document: %v", err)
	}
}

func TestApplyIsRepeatableAndDeleteToo(t *testing.T) {
	c := planetest.Start(t, false)
	config := planetest.Config(t, c.Dir.Kubeconfig())
	writer, err := apply.New(config, "tests")
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	for _, value := range []string{"1", "1", "2"} {
		list, err := apply.Decode([]byte(strings.ReplaceAll(objects, `"1"`, `"`+value+`"`)))
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Apply(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().ConfigMaps("tests").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil || got.Data["a"] != value {
			t.Fatalf("got %v, %v", got.Data, err)
		}
	}
	list, _ := apply.Decode([]byte(objects))
	for range 2 {
		if err := writer.Delete(t.Context(), list[1:]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().ConfigMaps("tests").Get(t.Context(), "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

func TestErrorsNameTheObject(t *testing.T) {
	c := planetest.Start(t, false)
	writer, err := apply.New(planetest.Config(t, c.Dir.Kubeconfig()), "default")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		reason, yaml, want string
	}{
		"UnknownKind": {"a kind that the server does not have", "{apiVersion: x.y/v1, kind: Z, metadata: {name: a}}", "Z/a"},
		"Refused":     {"an object that the server refuses", "{apiVersion: v1, kind: ConfigMap, metadata: {name: UPPER}}", "ConfigMap/UPPER"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			list, err := apply.Decode([]byte(tc.yaml))
			if err != nil {
				t.Fatal(err)
			}
			if err := writer.Apply(t.Context(), list); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}
