package testbed

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/devcluster/apply"
)

// SnapshotPair returns the names of the two programs that take snapshots together: the controller, and the sidecar.
func SnapshotPair() []string { return []string{"snapshot-controller", "csi-snapshotter"} }

// WithoutSnapshotPair is the flag of `devcluster up` for a cluster in which a test runs these two itself.
const WithoutSnapshotPair = "--without=csi-snapshotter,snapshot-controller"

// HoldSnapshotPair stops the cluster's own pair, if it runs one, until the end of the test.
func (s *Scene) HoldSnapshotPair() {
	s.T.Helper()
	for _, p := range s.Dev.Processes {
		if !slices.Contains(SnapshotPair(), p.Name) {
			continue
		}
		s.Retry("stop "+p.Name, func(ctx context.Context) error { return s.Dev.Hold(ctx, p.Name) })
		s.T.Cleanup(func() {
			if err := s.Dev.Release(context.Background(), p.Name); err != nil {
				s.T.Errorf("start %s: %v", p.Name, err)
			}
		})
	}
}

// InstallSnapshotKinds creates the CustomResourceDefinitions of snapshots, those of groups included, and waits until they are served.
func (s *Scene) InstallSnapshotKinds() {
	s.T.Helper()
	files, err := filepath.Glob(Path("deploy/crds/snapshot/*.storage.k8s.io_*.yaml"))
	if err != nil || len(files) == 0 {
		s.T.Fatalf("no definitions: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			s.T.Fatal(err)
		}
		objects, err := apply.Decode(data)
		if err != nil {
			s.T.Fatalf("%s: %v", file, err)
		}
		client, err := apply.New(apply.Config{REST: s.Config, Manager: "e2e"})
		if err != nil {
			s.T.Fatal(err)
		}
		s.Retry("install "+filepath.Base(file), func(ctx context.Context) error { return client.Apply(ctx, objects...) })
	}
	api, err := snapshotapi.New(s.Config)
	if err != nil {
		s.T.Fatal(err)
	}
	s.Retry("list snapshots", func(ctx context.Context) error {
		_, err1 := api.VolumeSnapshots(s.Namespace).List(ctx, metav1.ListOptions{})
		_, err2 := api.VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		_, err3 := api.VolumeSnapshotClasses().List(ctx, metav1.ListOptions{})
		_, served, err4 := api.Served(ctx)
		if !served && err4 == nil {
			err4 = fmt.Errorf("group snapshots are not served")
		}
		return cmp.Or(err1, err2, err3, err4)
	})
}
