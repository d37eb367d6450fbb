package release

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

func TestFinalizerPatches(t *testing.T) {
	const foreign = "kubernetes.io/pv-protection"
	protect := func(c *Controller) func(context.Context, *corev1.PersistentVolume) error { return c.protect }
	release := func(c *Controller) func(context.Context, *corev1.PersistentVolume) error { return c.release }
	cases := map[string]struct {
		reason string
		phase  func(*Controller) func(context.Context, *corev1.PersistentVolume) error
		before []string
		want   []string
	}{
		"Protect": {
			reason: "The finalizer is added to those of others.",
			phase:  protect, before: []string{foreign}, want: []string{foreign, volume.Finalizer},
		},
		"ProtectBare": {
			reason: "An object without finalizers gets one.",
			phase:  protect, want: []string{volume.Finalizer},
		},
		"ProtectTwice": {
			reason: "An object that has the finalizer gets no second one.",
			phase:  protect, before: []string{volume.Finalizer, foreign}, want: []string{volume.Finalizer, foreign},
		},
		"Release": {
			reason: "The finalizers of others stay.",
			phase:  release, before: []string{foreign, volume.Finalizer, "example.com/x"}, want: []string{foreign, "example.com/x"},
		},
		"ReleaseLast": {
			reason: "The last finalizer may go.",
			phase:  release, before: []string{volume.Finalizer},
		},
		"ReleaseNothing": {
			reason: "What is not there need not be taken off.",
			phase:  release, before: []string{foreign}, want: []string{foreign},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pv := fixtures.PV()
			pv.Finalizers = tc.before
			onRig(t, func(t *testing.T, r *rig) {
				if err := tc.phase(r.Controller)(fixtures.Quiet(t), pv); err != nil {
					t.Fatalf("%s\n%v", tc.reason, err)
				}
				inAnyOrder := cmpopts.SortSlices(strings.Compare)
				if diff := cmp.Diff(tc.want, r.StoredPV().Finalizers, inAnyOrder); diff != "" {
					t.Errorf("%s\nfinalizers (-want +got):\n%s", tc.reason, diff)
				}
				// The cache knows before the watch has brought it.
				cached, _ := r.cfg.View.Volumes.Get("", pv.Name)
				if diff := cmp.Diff(tc.want, cached.Finalizers, inAnyOrder); diff != "" {
					t.Errorf("%s\nfinalizers in the cache (-want +got):\n%s", tc.reason, diff)
				}
			}, pv)
		})
	}
}

// TestFinalizerOfSuccessor keeps a patch from an object that has taken the name of the one that was meant.
func TestFinalizerOfSuccessor(t *testing.T) {
	successor := fixtures.PV()
	successor.UID = "pv-2"
	onRig(t, func(t *testing.T, r *rig) {
		if err := r.release(fixtures.Quiet(t), fixtures.PV()); err == nil {
			t.Error("no error, the successor was patched")
		}
		if !hasFinalizer(r.StoredPV()) {
			t.Error("the successor has lost its finalizer")
		}
	}, successor)
}

func TestFinalizerErrors(t *testing.T) {
	away := apierrors.NewServiceUnavailable("away")
	cases := map[string]struct {
		reason string
		err    error
		want   string
	}{
		"Gone": {
			reason: "An object that is gone needs no patch.",
			err:    apierrors.NewNotFound(corev1.Resource("persistentvolumes"), "pvc-uid-1"),
		},
		"Away": {
			reason: "Other errors come back, with the name, so that the queue tries again.",
			err:    away, want: `"pvc-uid-1"`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.Cluster.Fail("patch", "persistentvolumes", tc.err, 1)
				err := r.protect(fixtures.Quiet(t), fixtures.PV())
				switch {
				case tc.want == "" && err != nil:
					t.Errorf("%s\n%v", tc.reason, err)
				case tc.want != "" && (!errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.want)):
					t.Errorf("%s\nerror %v, want %v with %s", tc.reason, err, tc.err, tc.want)
				}
			}, fixtures.PV())
		})
	}
}

// TestProtectedWhileReleased puts the finalizer on a volume that is being released: the watch has brought the
// release, and not the finalizer yet, when the volume is deleted. The finalizer must not stay for good.
func TestProtectedWhileReleased(t *testing.T) {
	cases := map[string]struct {
		reason  string
		protect func(t *testing.T, r *rig)
		// early says that the finalizer is off before the watch has brought it.
		early bool
	}{
		"Own": {
			reason: "What this process has written it knows without the watch.",
			protect: func(t *testing.T, r *rig) {
				if err := r.protect(fixtures.Quiet(t), r.StoredPV()); err != nil {
					t.Fatal(err)
				}
			},
			early: true,
		},
		"FormerLeader": {
			reason: "What another process has written is cleared away when the watch brings it.",
			protect: func(t *testing.T, r *rig) {
				pv := r.StoredPV()
				pv.Finalizers = append(pv.Finalizers, volume.Finalizer)
				if err := r.Cluster.Apply(pv); err != nil {
					t.Fatal(err)
				}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pv := fixtures.PV()
			pv.Finalizers, pv.Status.Phase = []string{"example.com/slow"}, corev1.VolumeReleased
			onRig(t, func(t *testing.T, r *rig) {
				r.Deaf("persistentvolumes")
				tc.protect(t, r)
				r.step(pv.Name)
				if left := r.StoredPV(); left.DeletionTimestamp == nil || hasFinalizer(left) == tc.early {
					t.Errorf("%s\nbefore the watch: deleted at %v, finalizers %q", tc.reason, left.DeletionTimestamp, left.Finalizers)
				}
				r.Hear()
				r.step(pv.Name)
				if diff := cmp.Diff([]string{"example.com/slow"}, r.StoredPV().Finalizers); diff != "" {
					t.Errorf("%s\nfinalizers in the end (-want +got):\n%s", tc.reason, diff)
				}
				if diff := cmp.Diff([]string{"DeleteVolume"}, r.Calls()); diff != "" {
					t.Errorf("%s\ncalls (-want +got):\n%s", tc.reason, diff)
				}
			}, pv)
		})
	}
}
