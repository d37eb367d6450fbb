package snapshotapitest_test

import (
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

func install() *kubetest.Cluster {
	cluster := kubetest.New()
	snapshotapitest.Install(cluster)
	return cluster
}

// TestServed takes the kinds of group snapshots away and brings them back, under the faults of the cluster.
func TestServed(t *testing.T) {
	t.Parallel()
	cluster := install()
	session := cluster.NewSession()
	client := snapshotapitest.New(session)
	steps := []struct {
		reason string
		do     func()
		served bool
		err    error
	}{
		{reason: "Install has installed them.", do: func() {}, served: true},
		{reason: "They are removed.", do: func() { cluster.SetServed(snapshotapi.GroupSnapshotGroup, false) }},
		{reason: "They are installed again.", do: func() { cluster.SetServed(snapshotapi.GroupSnapshotGroup, true) }, served: true},
		{reason: "Snapshots are another group.", do: func() { cluster.SetServed(snapshotapi.Group, false) }, served: true},
		{reason: "Discovery fails.", do: func() {
			cluster.Fail("get", snapshotapi.GroupSnapshotGroup, apierrors.NewServiceUnavailable("starting"), 1)
		}, err: apierrors.NewServiceUnavailable("starting")},
		{reason: "The process is cut off.", do: session.Cut, err: kubetest.ErrCut},
	}
	for _, step := range steps {
		step.do()
		version, served, err := client.Served(t.Context())
		if served != step.served || served != (version == "v1") || (err == nil) != (step.err == nil) || err != nil && err.Error() != step.err.Error() {
			t.Errorf("%s: version %q, served %v, error %v", step.reason, version, served, err)
		}
	}
}

// TestAbsent has every request for an absent kind answered so, and keeps the objects meanwhile.
func TestAbsent(t *testing.T) {
	t.Parallel()
	cluster := install()
	client := snapshotapitest.New(cluster).VolumeGroupSnapshotClasses()
	class := &groupv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: "d", DeletionPolicy: "Delete"}
	if _, err := client.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.SetServed(snapshotapi.GroupSnapshotGroup, false)
	requests := map[string]func() error{
		"Get":    func() error { _, err := client.Get(t.Context(), "fast", metav1.GetOptions{}); return err },
		"List":   func() error { _, err := client.List(t.Context(), metav1.ListOptions{}); return err },
		"Watch":  func() error { _, err := client.Watch(t.Context(), metav1.ListOptions{}); return err },
		"Create": func() error { _, err := client.Create(t.Context(), class, metav1.CreateOptions{}); return err },
		"Update": func() error { _, err := client.Update(t.Context(), class, metav1.UpdateOptions{}); return err },
		"Patch": func() error {
			_, err := client.Patch(t.Context(), "fast", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
			return err
		},
		"Delete": func() error { return client.Delete(t.Context(), "fast", metav1.DeleteOptions{}) },
	}
	for name, request := range requests {
		if err := request(); !snapshotapi.IsAbsent(err) {
			t.Errorf("%s: want an error that says that the kind is absent, got %v", name, err)
		}
	}
	if _, err := snapshotapitest.New(cluster).VolumeSnapshotClasses().Get(t.Context(), "fast", metav1.GetOptions{}); !apierrors.IsNotFound(err) || snapshotapi.IsAbsent(err) {
		t.Errorf("a kind of the other group is there, its object is not: %v", err)
	}
	if writes := cluster.Writes(); len(writes) != 5 || !snapshotapi.IsAbsent(writes[4].Err) {
		t.Errorf("the log has %+v", writes)
	}
	cluster.SetServed(snapshotapi.GroupSnapshotGroup, true)
	if got, err := client.Get(t.Context(), "fast", metav1.GetOptions{}); err != nil || got.Driver != "d" {
		t.Errorf("class %v, error %v", got, err)
	}
}

// TestByHand applies an object that the rules refuse: clients may change what else it has, but not that.
func TestByHand(t *testing.T) {
	t.Parallel()
	cluster := install()
	client := snapshotapitest.New(cluster).VolumeSnapshotContents()
	stream, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Stop()
	handle := "snap-1"
	if err := cluster.Apply(&snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: snapshotv1.VolumeSnapshotContentSpec{DeletionPolicy: "Recycle"},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle},
	}); err != nil {
		t.Fatal(err)
	}
	event := <-stream.ResultChan()
	content, ok := event.Object.(*snapshotv1.VolumeSnapshotContent)
	if !ok || event.Type != watch.Added || content.UID == "" || content.Status == nil || *content.Status.SnapshotHandle != handle {
		t.Errorf("event %s %v", event.Type, event.Object)
	}
	patch := func(patch string, subresources ...string) error {
		_, err := client.Patch(t.Context(), "c", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}
	for _, unrelated := range []string{`{"metadata":{"labels":{"a":"b"}}}`, `{"spec":{"driver":"d"}}`} {
		if err := patch(unrelated); err != nil {
			t.Errorf("%s: %v", unrelated, err)
		}
	}
	if err := patch(`{"status":{"readyToUse":true}}`, "status"); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{`{"spec":{"deletionPolicy":"x"}}`, `{"spec":{"source":{"snapshotHandle":"a","volumeHandle":"b"}}}`} {
		if err := patch(wrong); !apierrors.IsInvalid(err) {
			t.Errorf("%s: want an error, got %v", wrong, err)
		}
	}
	if resource, err := cluster.ResourceOf("VolumeSnapshotContent"); resource != "volumesnapshotcontents" || err != nil {
		t.Errorf("resource %q, error %v", resource, err)
	}
}
