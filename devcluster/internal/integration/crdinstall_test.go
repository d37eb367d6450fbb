package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/devcluster/internal/build"
)

const (
	revisionKey = "csi.longshore.dev/crd-revision"
	snapshotCRD = "volumesnapshots." + snapshotGroup
)

// kubectlOnPath puts a kubectl on PATH: the cluster's, but for waiting until pods are ready, as there is no controller. It returns a file that
// has the arguments of each call in a line.
func (s *crdServer) kubectlOnPath(t *testing.T) (calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	text := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%s\ncase $1 in rollout) exit 0 ;; esac\nexec %s --kubeconfig %s \"$@\"\n", calls, s.bin.Path(build.Kubectl), s.dir.Kubeconfig())
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return calls
}

// script runs a script of deploy/, and returns its output and its error.
func script(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(crdDirectory, name), args...).CombinedOutput()
	return string(out), err
}

// identities are UID and resource version of each definition.
func (s *crdServer) identities(t *testing.T) map[string][2]string {
	t.Helper()
	list, err := s.dynamic.Resource(crdResource).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][2]string{}
	for _, d := range list.Items {
		all[d.GetName()] = [2]string{string(d.GetUID()), d.GetResourceVersion()}
	}
	return all
}

// TestInstallSnapshotCRDs: the script installs and upgrades its own definitions, and leaves those of others unchanged.
func TestInstallSnapshotCRDs(t *testing.T) {
	s := newCRDServer(t)
	s.kubectlOnPath(t)
	if out, err := script(t, "apply"); err != nil || out != "" {
		t.Fatalf("%s%v", out, err)
	}
	installed := s.identities(t)
	if len(installed) != 7 {
		t.Errorf("installed %v", installed)
	}
	for _, tc := range []struct{ name, reason, patch, want string }{
		{name: "Repeated", reason: "nothing changes"},
		{
			name: "Newer", reason: "no downgrade", patch: "{metadata: {annotations: {" + revisionKey + ": '99'}}}",
			want: snapshotCRD + " has revision 99, which is newer than [0-9]+, and is left unchanged\n",
		},
		{
			name: "Helm", reason: "the chart upgrades it", patch: "{metadata: {annotations: {" + revisionKey + ": '0', meta.helm.sh/release-name: other}}}",
			want: snapshotCRD + " belongs to the helm release other and is left unchanged; it serves v1\n",
		},
		{
			name: "Others", reason: "the distribution upgrades it", patch: "{metadata: {annotations: {" + revisionKey + ": null, meta.helm.sh/release-name: null}}}",
			want: snapshotCRD + " was installed by others and is left unchanged; it serves v1\n",
		},
		{
			name: "OthersAndOld", reason: "the user learns what is missing", patch: "{spec: {versions: [{name: v1, served: false, storage: true, schema: {openAPIV3Schema: {type: object}}}, {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}]}}",
			want: snapshotCRD + " was installed by others and is left unchanged; it serves v2\n" +
				snapshotCRD + " does not serve v1: upgrade it with the program that has installed it, or see deploy/crds/README.md\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.patch != "" {
				if _, err := s.patch(t, crdResource, snapshotCRD, tc.patch); err != nil {
					t.Fatal(err)
				}
			}
			before := s.settled(t)
			out, err := script(t, "apply")
			if err != nil || !regexp.MustCompile("^"+tc.want+"$").MatchString(out) {
				t.Errorf("%s: want %q, got %q, %v", tc.reason, tc.want, out, err)
			}
			if diff := cmp.Diff(before, s.identities(t)); diff != "" {
				t.Errorf("%s: -before +after\n%s", tc.reason, diff)
			}
		})
	}
	t.Run("Older", func(t *testing.T) {
		if _, err := s.patch(t, crdResource, snapshotCRD, "{metadata: {annotations: {"+revisionKey+": '0'}}, spec: {versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}"); err != nil {
			t.Fatal(err)
		}
		if out, err := script(t, "apply"); err != nil || out != "" {
			t.Errorf("%s%v", out, err)
		}
		got, err := s.dynamic.Resource(crdResource).Get(t.Context(), snapshotCRD, metav1.GetOptions{})
		if err != nil || string(got.GetUID()) != installed[snapshotCRD][0] || len(versionsOf(t, got)) != 2 || got.GetAnnotations()[revisionKey] == "0" {
			t.Errorf("the definition was not upgraded: %v, %v", got.GetAnnotations(), err)
		}
	})
}

// settled waits until the API server no longer changes the conditions of the definitions.
func (s *crdServer) settled(t *testing.T) map[string][2]string {
	t.Helper()
	s.areApproved(t)
	return s.identities(t)
}

// TestMovesKeepSnapshotCRDs: deploy/apply installs the definitions before everything else, and a move to another form keeps them with the
// objects of users.
func TestMovesKeepSnapshotCRDs(t *testing.T) {
	s := newCRDServer(t)
	calls := s.kubectlOnPath(t)
	s.refuses(t)
	deploy(t, "deployment")
	definitions := s.settled(t)
	if len(definitions) != 7 {
		t.Fatalf("installed %v", definitions)
	}
	classes := schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotclasses"}
	class, err := s.create(t, classes, "kept", "{driver: d, deletionPolicy: Retain}", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"daemonset", "distributed"} {
		deploy(t, form)
		if diff := cmp.Diff(definitions, s.identities(t)); diff != "" {
			t.Errorf("moved to %s: -before +after\n%s", form, diff)
		}
	}
	if got, err := s.in(classes).Get(t.Context(), "kept", metav1.GetOptions{}); err != nil || got.GetUID() != class.GetUID() {
		t.Errorf("the user's object is gone: %v", err)
	}
	data, err := os.ReadFile(calls)
	if err != nil || !strings.Contains(string(data), "\ndelete ") {
		t.Errorf("no move has deleted anything, so that the test shows nothing: %v", err)
	}
	for call := range strings.Lines(string(data)) {
		if strings.HasPrefix(call, "delete ") && strings.Contains(call, "customresourcedefinition") {
			t.Errorf("definitions are deleted: kubectl %s", call)
		}
	}
	// kubectl keeps the list of kinds that it has read before.
	if err := s.dynamic.Resource(crdResource).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kinds of snapshots are gone", func(ctx context.Context) string {
		if out, err := exec.CommandContext(ctx, "kubectl", "get", "--raw", "/apis/"+classes.GroupVersion().String()).CombinedOutput(); err == nil {
			return string(out)
		}
		return ""
	})
	s.refuses(t)
}

// refuses checks that a driver with a snapshotter is not installed without definitions if the user does not want them.
func (s *crdServer) refuses(t *testing.T) {
	t.Helper()
	t.Setenv("SNAPSHOT_CRDS", "no")
	out, err := script(t, "../apply", filepath.Join(crdDirectory, "../overlays/deployment"))
	if err == nil || !strings.Contains(out, "refused: SNAPSHOT_CRDS is no") || !strings.Contains(out, "VolumeSnapshotClass of snapshot.storage.k8s.io/v1") || strings.Contains(out, "applying") {
		t.Errorf("want the driver not to be installed without definitions; got %v\n%s", err, out)
	}
	if got := s.identities(t); len(got) > 0 {
		t.Errorf("installed though the user did not want them: %v", got)
	}
	t.Setenv("SNAPSHOT_CRDS", "")
}

// deploy moves the driver to a form. The script ends where it looks for the nodes, of which there are none.
func deploy(t *testing.T, form string) {
	t.Helper()
	out, err := script(t, "../apply", filepath.Join(crdDirectory, "../overlays", form))
	steps := []int{strings.Index(out, "applying the CustomResourceDefinitions of snapshots"), strings.Index(out, "applying the snapshot-controller"), strings.Index(out, form+": rights")}
	if err == nil || !strings.HasSuffix(out, "\nno node has the driver\n") || steps[0] < 0 || !slices.IsSorted(steps) {
		t.Errorf("%s: want the definitions first, then the snapshot-controller and the driver; got %v\n%s", form, err, out)
	}
}
