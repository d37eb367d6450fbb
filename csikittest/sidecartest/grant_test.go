package sidecartest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

func TestGrant(t *testing.T) {
	cluster := kubetest.New()
	granted := sidecartest.Grant(t, cluster, []sidecartest.Right{
		{Resource: "nodes", Verbs: "get, list"}, {Resource: "nodes", Verbs: "watch"}, {Resource: "persistentvolumes/status", Verbs: "patch"},
	})
	client := cluster.Client()
	patch := func(subresources ...string) error {
		_, err := client.PersistentVolumes().Patch(t.Context(), "pv", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, subresources...)
		return err
	}
	if err := patch("status"); !apierrors.IsNotFound(err) {
		t.Errorf("a patch of the status is granted, got %v", err)
	}
	if err := patch(); !apierrors.IsForbidden(err) {
		t.Errorf("a patch of the object is not granted, got %v", err)
	}
	for range 6 {
		if _, err := client.Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("a list is granted, got %v", err)
		}
		if _, err := client.Pods("").Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a watch is not granted, got %v", err)
		}
	}
	want := map[string]int{"patch persistentvolumes/status": 1, "patch persistentvolumes": 1, "list nodes": 6, "watch pods": 6}
	if diff := cmp.Diff(want, granted.Requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	logger := klog.FromContext(granted.Context(t.Context()))
	logger.Info("Fine", "err", "none")
	logger.Error(errors.New("broken"), "Bad")
	f := &failures{TB: t}
	granted.Check(f)
	if got := strings.Join(f.texts, "\n"); len(f.texts) != 3 || !strings.Contains(got, `1 lines of the log report errors`) || !strings.Contains(got, `"Bad" err="broken"`) ||
		!strings.Contains(got, "6 requests to list nodes, want at most 5") || !strings.Contains(got, "6 requests to watch pods, want at most 5") {
		t.Errorf("reported:\n%s", got)
	}
}
