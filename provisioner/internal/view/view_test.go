package view

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// watching runs a test on a view that is complete, in virtual time.
func watching(t *testing.T, cfg Config, test func(t *testing.T, v *View, cluster *kubetest.Cluster), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubeapitest.NewCluster(objs...)
		cfg.Kube, cfg.Driver, cfg.Naming = kubeapitest.New(cluster.Client()), driver, volume.Naming{Prefix: "pvc", UUIDLength: -1}
		cfg.Timeout = 30 * time.Second
		v := New(cfg)
		if v.Synced() == nil {
			t.Error("a view that was not started is complete")
		}
		test(t, v, cluster)
	})
}

// start completes a view.
func start(t *testing.T, v *View) {
	t.Helper()
	t.Cleanup(v.Start(quiet(t)))
	if err := v.WaitSynced(quiet(t)); err != nil {
		t.Fatal(err)
	}
	if v.Synced() != nil {
		t.Error("the view is not complete")
	}
	synctest.Wait()
}

// node is a node in a zone, and what the driver has registered there.
func node(name, zone string) []runtime.Object {
	return []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name, TopologyKeys: []string{"zone"}}},
		}},
	}
}

// TestObservers has a case for each change that is reported.
func TestObservers(t *testing.T) {
	cases := map[string]struct {
		reason string
		act    func(cluster *kubetest.Cluster) error
		want   []string
	}{
		"NewClass": {
			reason: "A new class has a capacity to publish.", act: func(c *kubetest.Cluster) error {
				slow := newClass()
				slow.Name, slow.UID = "slow", "class-2"
				return c.Apply(slow)
			}, want: []string{"class"},
		},
		"ClassGone": {
			reason: "A deleted class has none.",
			act:    func(c *kubetest.Cluster) error { return c.Remove("storageclasses", "", "fast") }, want: []string{"class"},
		},
		"NewSegment": {
			reason: "The second of Node and CSINode adds a segment.",
			act:    func(c *kubetest.Cluster) error { return c.Apply(node("n2", "b")...) }, want: []string{"node n2", "node n2", "topology"},
		},
		"OldSegment": {
			reason: "A claim may wait for a node in a segment that others are in.",
			act:    func(c *kubetest.Cluster) error { return c.Apply(node("n2", "a")...) }, want: []string{"node n2", "node n2"},
		},
		"NodeGone": {
			reason: "The segment goes with its last node.",
			act:    func(c *kubetest.Cluster) error { return c.Remove("csinodes", "", "n1") }, want: []string{"topology"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			watching(t, Config{Shape: Shape{Topology: true}}, func(t *testing.T, v *View, cluster *kubetest.Cluster) {
				lines := make(chan string, 100)
				v.OnClass(func() { lines <- "class" })
				v.OnTopology(func() { lines <- "topology" })
				v.OnNode(func(name string) { lines <- "node " + name })
				start(t, v)
				take(lines)
				if err := tc.act(cluster); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				got := take(lines)
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s\nreported (-want +got):\n%s", tc.reason, diff)
				}
			}, append(node("n1", "a"), newClass())...)
		})
	}
}

// take returns what is in a channel, sorted, so that the order of kinds does not matter.
func take(lines chan string) (all []string) {
	for len(lines) > 0 {
		all = append(all, <-lines)
	}
	slices.Sort(all)
	return all
}

// TestLookups asks for objects by what others know of them.
func TestLookups(t *testing.T) {
	source, name := volume.SourceRef{Kind: KindClaim, Namespace: "team", Name: "origin"}, "pvc-uid-1"
	clone := newClaim()
	clone.ResourceVersion, clone.Spec.DataSource = "", &corev1.TypedLocalObjectReference{Kind: KindClaim, Name: "origin"}
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va"},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
	}
	watching(t, Config{Shape: Shape{Attachments: true}}, func(t *testing.T, v *View, _ *kubetest.Cluster) {
		start(t, v)
		for what, n := range map[string]int{
			"claims of the class": len(v.ClaimsOfClass("fast")), "claims of another": len(v.ClaimsOfClass("slow")) + 1,
			"claims from the source": len(v.ClaimsFrom(source)), "claims of the volume": len(v.ClaimsOfVolume(name)),
			"volumes of the handle": len(v.VolumesOf("vol-1")), "attachments": len(v.AttachmentsOf(name)),
			"classes": len(v.AllClasses()), "segments without topology": len(v.Segments()),
		} {
			if n != 1 {
				t.Errorf("%s: %d, want 1", what, n)
			}
		}
		if _, ok := v.Class("fast"); !ok {
			t.Error("the class is not found")
		}
		if !v.Segments()[0].IsEmpty() {
			t.Errorf("segment %q of a driver without topology, want the one that has all nodes", v.Segments()[0])
		}
	}, clone, newPV(), newClass(), attachment)
	watching(t, Config{}, func(t *testing.T, v *View, _ *kubetest.Cluster) {
		start(t, v)
		if got := v.AttachmentsOf(name); got != nil {
			t.Errorf("attachments %v of a driver that attaches nothing", got)
		}
	}, attachment)
}

// TestSourcesInOtherNamespaces finds what belongs to the namespace of a source.
func TestSourcesInOtherNamespaces(t *testing.T) {
	clone := func(name, group, kind string, namespace *string) *corev1.PersistentVolumeClaim {
		claim := newClaim()
		claim.Name, claim.UID, claim.ResourceVersion = name, types.UID(name), ""
		claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: kind, Name: "origin", Namespace: namespace}
		return claim
	}
	store, team := "store", "team"
	bound := clone("bound", "", KindClaim, &store)
	bound.Spec.VolumeName = "pv"
	grant := &kubeapi.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: store, Name: "teams"}}
	watching(t, Config{Shape: Shape{Grants: true}}, func(t *testing.T, v *View, _ *kubetest.Cluster) {
		start(t, v)
		var names []string
		for _, claim := range v.ClaimsFromNamespace(store) {
			names = append(names, claim.Name)
		}
		slices.Sort(names)
		if diff := cmp.Diff([]string{"clone", "restore"}, names); diff != "" {
			t.Errorf("claims from namespace %q (-want +got):\n%s", store, diff)
		}
		if got := v.ClaimsFromNamespace(team); len(got) != 0 {
			t.Errorf("%d claims of namespace %q from that itself, want none", len(got), team)
		}
		if got := v.ClaimsFrom(volume.SourceRef{Kind: KindClaim, Namespace: store, Name: "origin"}); len(got) != 1 || got[0].Name != "clone" {
			t.Errorf("claims from the source %v, want one", got)
		}
		for namespace, want := range map[string]int{store: 1, team: 0} {
			if got, unwatched, err := v.GrantsIn(quiet(t), namespace); unwatched || err != nil || len(got) != want {
				t.Errorf("grants in %q: %v, %v, want %d", namespace, got, err, want)
			}
		}
	}, clone("clone", "", KindClaim, &store), clone("restore", snapshotv1.GroupName, KindSnapshot, &store), clone("populated", "example.com", "Backup", &store),
		clone("own", "", KindClaim, &team), clone("local", "", KindClaim, nil), bound, grant)
}

// TestOptionalKind follows ReferenceGrants that cannot be listed at first. The view is complete without them.
func TestOptionalKind(t *testing.T) {
	cases := map[string]struct {
		reason string
		fault  kubetest.Fault
		// wait is how long the start takes, and want is part of the reason why they are not known then.
		wait time.Duration
		want string
	}{
		"Forbidden": {reason: "An answer is an answer.", fault: kubetest.Fault{Err: apierrors.NewForbidden(corev1.Resource("referencegrants"), "", nil)}, want: "forbidden"},
		"Slow":      {reason: "All other claims do not wait for long.", fault: kubetest.Fault{Delay: 20 * time.Second}, wait: optionalGrace, want: "not complete"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			watching(t, Config{Shape: Shape{Grants: true}}, func(t *testing.T, v *View, cluster *kubetest.Cluster) {
				tc.fault.Resource = "referencegrants"
				cluster.Inject(tc.fault)
				begun := time.Now()
				start(t, v)
				if waited := time.Since(begun); waited != tc.wait {
					t.Errorf("%s\nthe start took %v, want %v", tc.reason, waited, tc.wait)
				}
				if _, _, err := v.GrantsIn(quiet(t), "store"); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s\nerror %v, want %q", tc.reason, err, tc.want)
				}
				cluster.Heal()
				time.Sleep(kube.DefaultAskAgain)
				synctest.Wait()
				if got, unwatched, err := v.GrantsIn(quiet(t), "store"); unwatched || err != nil || len(got) != 1 {
					t.Errorf("%s\ngrants %v, %v, want one", tc.reason, got, err)
				}
			}, &kubeapi.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "store", Name: "teams"}})
		})
	}
}

// pages is a client whose lists of ReferenceGrants have more pages.
type pages struct{ kubeapi.Client }

func (p pages) ReferenceGrants(namespace string) kubeapi.ReferenceGrants {
	return pagesOf{p.Client.ReferenceGrants(namespace)}
}

type pagesOf struct{ kubeapi.ReferenceGrants }

func (p pagesOf) List(ctx context.Context, opts metav1.ListOptions) (*kubeapi.ReferenceGrantList, error) {
	list, err := p.ReferenceGrants.List(ctx, opts)
	if err == nil && opts.Limit > 0 {
		list.Continue = "more"
	}
	return list, err
}

// TestGrantsWithoutWatch reads ReferenceGrants that may be listed, and not watched, one namespace at a time, and no more of them than a page has.
func TestGrantsWithoutWatch(t *testing.T) {
	grant := func(namespace string) *kubeapi.ReferenceGrant {
		return &kubeapi.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "teams"}}
	}
	watching(t, Config{Shape: Shape{Grants: true}}, func(t *testing.T, v *View, cluster *kubetest.Cluster) {
		cluster.Fail("watch", "referencegrants", apierrors.NewForbidden(corev1.Resource("referencegrants"), "", nil), 0)
		start(t, v)
		if got, unwatched, err := v.GrantsIn(quiet(t), "store"); len(got) != 1 || got[0].Namespace != "store" || !unwatched || err != nil {
			t.Errorf("grants %v, unwatched: %v, %v, want that of the namespace", got, unwatched, err)
		}
		if err := cluster.Remove("referencegrants", "store", "teams"); err != nil {
			t.Fatal(err)
		}
		if got, unwatched, err := v.GrantsIn(quiet(t), "store"); len(got) != 0 || !unwatched || err != nil {
			t.Errorf("grants %v, unwatched: %v, %v, want none", got, unwatched, err)
		}
		more := New(Config{Shape: Shape{Grants: true}, Kube: pages{kubeapitest.New(cluster.Client())}, Driver: driver, Timeout: time.Minute})
		start(t, more)
		if got, unwatched, err := more.GrantsIn(quiet(t), "else"); len(got) != 1 || !unwatched || err == nil || !strings.Contains(err.Error(), "more than 500") {
			t.Errorf("grants %v, unwatched: %v, %v, want one, and an error as there are more", got, unwatched, err)
		}
	}, grant("store"), grant("else"))
}

// TestAbsentKindIsSoughtRarely has a cluster without a kind: an instance for one node, of which there may be thousands, looks for it rarely.
func TestAbsentKindIsSoughtRarely(t *testing.T) {
	for name, tc := range map[string]struct {
		node Node
		want int
	}{
		"Cluster": {want: 15},
		"Node":    {node: Node{Name: "n1", Segments: map[string]string{"zone": "a"}}, want: 8},
	} {
		t.Run(name, func(t *testing.T) {
			watching(t, Config{Shape: Shape{Grants: true}, Node: tc.node}, func(t *testing.T, v *View, cluster *kubetest.Cluster) {
				requests := 0
				cluster.Inject(kubetest.Fault{Resource: "referencegrants", Err: apierrors.NewNotFound(corev1.Resource("referencegrants"), ""), Do: func() { requests++ }})
				start(t, v)
				time.Sleep(time.Hour)
				synctest.Wait()
				if requests > tc.want || requests < tc.want/2 {
					t.Errorf("%d requests in an hour, want %d, or as few as half of that", requests, tc.want)
				}
			})
		})
	}
}

// TestOneNode watches no nodes for an instance on each: it knows its own.
func TestOneNode(t *testing.T) {
	own := Node{Name: "n1", Segments: map[string]string{"zone": "a"}}
	watching(t, Config{Node: own, Shape: Shape{Topology: true, Attachments: true}}, func(t *testing.T, v *View, cluster *kubetest.Cluster) {
		for _, resource := range []string{"nodes", "csinodes"} {
			cluster.Fail("list", resource, apierrors.NewForbidden(corev1.Resource(resource), "", nil), 1000)
		}
		start(t, v)
		if v.nodes != nil || v.csiNodes != nil || len(v.all()) != 4 {
			t.Errorf("%d kinds are watched, want claims, volumes, classes and attachments", len(v.all()))
		}
		segment, err := v.Index.NodeSegment("n1")
		if err != nil || segment.String() != "zone=a" {
			t.Errorf("the index knows %q, %v of the own node", segment, err)
		}
		if got := v.Segments(); len(got) != 1 || got[0] != segment {
			t.Errorf("segments %v, want that of the own node", got)
		}
	})
}
