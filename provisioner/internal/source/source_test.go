package source

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

const driver = fixtures.Driver

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// newNode returns the own node.
func newNode() view.Node {
	return view.Node{Name: "n1", Segments: map[string]string{"node": "n1"}}
}

// affinity returns the affinity of a volume on a node.
func affinity(operator corev1.NodeSelectorOperator, node string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "node", Operator: operator, Values: []string{node}}},
	}}}}
}

// rig is a keeper whose caches are filled and whose queue stands still: a test takes the steps itself.
type rig struct {
	*Keeper
	*fixtures.World
}

// onRig runs a test on a rig, in virtual time, with these objects in the cluster.
func onRig(t *testing.T, test func(*testing.T, *rig), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{World: fixtures.NewWorld(t, csitest.Options{}, objs...)}
		api := kubeapitest.New(r.Cluster.Client())
		known := view.New(view.Config{Kube: api, Driver: driver, Timeout: time.Minute})
		var err error
		r.Keeper, err = New(Config{
			Driver: driver, Kube: api, View: known, InUse: func(volume.SourceRef) bool { return false }, Changed: func([]*corev1.PersistentVolumeClaim) {},
			Workers: 1, Retry: flagset.NewRetry(), KubeTimeout: time.Minute, Drain: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer known.Start(fixtures.Quiet(t))()
		if err := known.WaitSynced(fixtures.Quiet(t)); err != nil {
			t.Fatal(err)
		}
		test(t, r)
	})
}

// anywhere accepts every place.
func anywhere(volume.SourceRef, []topology.Segment) error { return nil }

// TestFreeing lets go of a source that is gone, or that cannot be read or written.
func TestFreeing(t *testing.T) {
	kept := func() *corev1.PersistentVolumeClaim {
		claim := fitClaim().claim
		claim.Finalizers, claim.ResourceVersion = []string{"example.com/other", view.FinalizerClone}, ""
		return claim
	}
	away := apierrors.NewServiceUnavailable("away")
	cases := map[string]struct {
		reason    string
		verb, res string
		err       error
		gone      bool
		fails     bool
		free      bool
	}{
		"Free":       {reason: "It goes on with the finalizers of others.", free: true},
		"Gone":       {reason: "Nothing is left to do.", gone: true},
		"ClaimAway":  {reason: "What cannot be read is tried again.", verb: "get", res: "persistentvolumeclaims", err: away, fails: true},
		"VolumeAway": {reason: "Whose volume it is, is not guessed.", verb: "get", res: "persistentvolumes", err: away, fails: true},
		"Conflict":   {reason: "It is read again.", verb: "update", res: "persistentvolumeclaims", err: apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), "data", nil), fails: true},
		"GoneSince":  {reason: "Nothing is left to do.", verb: "update", res: "persistentvolumeclaims", err: apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), "data")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			objs := []runtime.Object{fixtures.PV()}
			if !tc.gone {
				objs = append(objs, kept())
			}
			onRig(t, func(t *testing.T, r *rig) {
				if tc.err != nil {
					r.Cluster.Fail(tc.verb, tc.res, tc.err, 1)
				}
				_, err := r.reconcile(fixtures.Quiet(t), volume.SourceRef{Kind: view.KindClaim, Namespace: "team", Name: "data"})
				if (err != nil) != tc.fails || apierrors.IsConflict(err) != apierrors.IsConflict(tc.err) {
					t.Errorf("%s\nerror %v, want one: %v", tc.reason, err, tc.fails)
				}
				if claim := r.StoredClaim(); claim != nil && (len(claim.Finalizers) == 1) != tc.free {
					t.Errorf("%s\nfinalizers %q, free: %v", tc.reason, claim.Finalizers, tc.free)
				}
			}, objs...)
		})
	}
}

// TestManyClaimsOfOneSource has none of them wait for the reads of the others: they would keep the workers from all other claims.
func TestManyClaimsOfOneSource(t *testing.T) {
	for name, finalizers := range map[string][]string{"Kept": {view.FinalizerClone}, "NotYetKept": nil} {
		t.Run(name, func(t *testing.T) {
			source := fitClaim()
			source.claim.Finalizers = finalizers
			onRig(t, func(t *testing.T, r *rig) {
				r.Cluster.Inject(kubetest.Fault{Verb: "get", Resource: "persistentvolumeclaims", Delay: time.Second})
				began := time.Now()
				var work sync.WaitGroup
				for n := range 50 {
					claim := fixtures.Claim()
					claim.Name, claim.UID = fmt.Sprintf("clone-%d", n), types.UID(fmt.Sprintf("uid-%d", n))
					claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: view.KindClaim, Name: source.claim.Name}
					work.Go(func() {
						if _, err := r.Keep(fixtures.Quiet(t), claim, false, anywhere); err != nil {
							t.Error(err)
						}
					})
				}
				work.Wait()
				if took := time.Since(began); took > 4*time.Second {
					t.Errorf("50 claims took %v, with a source that is read in a second", took)
				}
			}, source.claim, source.volume)
		})
	}
}
