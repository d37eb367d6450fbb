package provisioner

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
)

// onNode returns options of an instance for one node.
func onNode(name string) Options {
	o := NewOptions()
	o.Node.Enabled, o.Node.Name = true, name
	return o
}

// newNodeDriver returns a driver with topology on a node.
func newNodeDriver(name string) *csitest.Driver {
	return csitest.New(csitest.Options{NodeID: name, Topology: map[string]string{"node": name}})
}

// homes returns the node that the volume of each claim is on, as its node affinity says.
func homes(cluster *kubetest.Cluster) map[string]string {
	found := map[string]string{}
	for _, obj := range cluster.Objects("persistentvolumes") {
		if pv, ok := obj.(*corev1.PersistentVolume); ok && pv.Spec.NodeAffinity != nil {
			found[pv.Spec.ClaimRef.Name] = pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
		}
	}
	return found
}

// TestNodeNameFromTheEnvironment reads the environment where the defaults are made, and nowhere else.
func TestNodeNameFromTheEnvironment(t *testing.T) {
	t.Setenv(EnvNodeName, "worker-1")
	o := NewOptions()
	if o.Node.Name != "worker-1" || o.Node.Enabled {
		t.Errorf("node options %+v", o.Node)
	}
	fs := flag.NewFlagSet("x", flag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse([]string{"--node-deployment"}); err != nil || !o.Node.Enabled {
		t.Errorf("node options %+v, %v", o.Node, err)
	}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}

// TestTwoNodesInOneProcess runs two instances in one process: each provisions and deletes for its own node.
func TestTwoNodesInOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubeapitest.NewCluster(newClass())
		drivers := map[string]*csitest.Driver{"n1": newNodeDriver("n1"), "n2": newNodeDriver("n2")}
		first := launch(t, "p1", cluster, drivers["n1"], onNode("n1"))
		second := launch(t, "p2", cluster, drivers["n2"], onNode("n2"))
		pass(time.Second)
		for i := range 10 {
			apply(t, cluster, newClaim(fmt.Sprintf("c%d", i)))
		}
		pass(time.Minute)
		found := homes(cluster)
		if len(found) != 10 || len(drivers["n1"].Volumes())+len(drivers["n2"].Volumes()) != 10 {
			t.Fatalf("volumes %v, want one for each of 10 claims", found)
		}
		for claim, node := range found {
			maker := map[string]string{"n1": "p1", "n2": "p2"}[node]
			if got, want := makers(cluster)[claim], maker+"-"+csitest.DefaultName+"-"+node; got != want {
				t.Errorf("the volume of claim %q was made by %q, want %q", claim, got, want)
			}
		}
		for _, obj := range cluster.Objects("events") {
			event, ok := obj.(*corev1.Event)
			if !ok || event.Source.Host != found[event.InvolvedObject.Name] || event.Source.Component != csitest.DefaultName {
				t.Errorf("event on %q from %+v, want the node %q", event.InvolvedObject.Name, event.Source, found[event.InvolvedObject.Name])
			}
		}
		first.stop(t)
		second.stop(t)
	})
}

// TestNodeState looks at /debug/state of both modes.
func TestNodeState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubeapitest.NewCluster(newClass(), newClaim("a"))
		p := launch(t, "p", cluster, newNodeDriver("n1"), onNode("n1"))
		pass(time.Millisecond)
		now, ok := p.now.Load().State().(state)
		if !ok || now.Node != "n1" || now.Segment != "node=n1" || now.Competing != 1 {
			t.Errorf("state %+v", now)
		}
		p.stop(t)
	})
}

// TestNodesNeedNoPermissionsForNodes lets the API refuse all about Nodes and CSINodes. The Node is asked for once, to be the owner of the Lease of the journal.
func TestNodesNeedNoPermissionsForNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubeapitest.NewCluster(newClass(), newClaim("a"))
		asked := 0
		for _, resource := range []string{"nodes", "csinodes"} {
			cluster.Inject(kubetest.Fault{Resource: resource, Do: func() { asked++ }, Err: apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "n1", nil)})
		}
		p := launch(t, "p", cluster, newNodeDriver("n1"), onNode("n1"))
		pass(time.Minute)
		if homes(cluster)["a"] != "n1" || asked != 1 {
			t.Errorf("volumes %v, after %d requests for nodes, want 1", homes(cluster), asked)
		}
		p.stop(t)
	})
}

// TestUnfitForOneNode tries drivers with which nothing good could come of it.
func TestUnfitForOneNode(t *testing.T) {
	controllerOnly := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	topologyOnly := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}
	both := append(topologyOnly, controllerOnly...)
	cases := map[string]struct {
		reason string
		driver csitest.Options
		fault  csitest.Fault
		want   []string
	}{
		"NoTopology":   {reason: "The segment of a volume would be unknown.", driver: csitest.Options{Plugin: controllerOnly}, want: []string{"VOLUME_ACCESSIBILITY_CONSTRAINTS"}},
		"NoController": {reason: "There is nothing to call.", driver: csitest.Options{Plugin: topologyOnly}, want: []string{"CONTROLLER_SERVICE"}},
		"NoSegments":   {reason: "The node is nowhere.", driver: csitest.Options{Plugin: both}, want: []string{"accessible_topology", `"node-1"`}},
		"BadSegments":  {reason: "The place could not be written into a PersistentVolume.", driver: csitest.Options{Topology: map[string]string{"a b": "c"}}, want: []string{"NodeGetInfo", "a b"}},
		"NoNodeService": {
			reason: "The socket is that of a controller plugin.", driver: csitest.Options{Topology: map[string]string{"node": "n1"}},
			fault: csitest.Fault{Method: "NodeGetInfo", Code: codes.Unimplemented}, want: []string{"Node service", "/run/csi/socket"},
		},
		"Broken": {
			reason: "An error that a retry cannot resolve is returned.", driver: csitest.Options{Topology: map[string]string{"node": "n1"}},
			fault: csitest.Fault{Method: "NodeGetInfo", Code: codes.Internal, Message: "no disk"}, want: []string{"no disk"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				driver := csitest.New(tc.driver)
				if tc.fault.Method != "" {
					driver.Inject(tc.fault)
				}
				p := launch(t, "p", kubeapitest.NewCluster(), driver, onNode("n1"))
				err := <-p.err
				if err == nil {
					t.Fatalf("%s\nno error", tc.reason)
				}
				for _, want := range append(tc.want, csitest.DefaultName) {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s\nerror %q does not name %q", tc.reason, err, want)
					}
				}
			})
		})
	}
}

// TestNodeIsNotReadyYet lets the driver answer late where its node is: the instance waits, and can be stopped meanwhile.
func TestNodeIsNotReadyYet(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.FailedPrecondition} {
		synctest.Test(t, func(t *testing.T) {
			cluster, driver := kubeapitest.NewCluster(newClass(), newClaim("a")), newNodeDriver("n1")
			driver.Inject(csitest.Fault{Method: "NodeGetInfo", Code: code})
			waiting := launch(t, "waiting", cluster, driver, onNode("n1"))
			p := launch(t, "p", cluster, driver, onNode("n1"))
			pass(time.Hour)
			if found := homes(cluster); len(found) != 0 {
				t.Errorf("volumes %v before the driver has said where its node is", found)
			}
			waiting.stop(t)
			driver.Heal()
			pass(time.Minute)
			if found := homes(cluster); found["a"] != "n1" {
				t.Errorf("volumes %v after %v is over", found, code)
			}
			p.stop(t)
		})
	}
}

// TestNodeHangs lets NodeGetInfo hang: each call ends by the deadline of calls to the driver.
func TestNodeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubeapitest.NewCluster(newClass(), newClaim("a")), newNodeDriver("n1")
		driver.Inject(csitest.Fault{Method: "NodeGetInfo", Hang: true, Times: 2})
		p := launch(t, "p", cluster, driver, onNode("n1"))
		pass(2 * time.Minute)
		if found := homes(cluster); found["a"] != "n1" {
			t.Errorf("volumes %v", found)
		}
		p.stop(t)
	})
}

// TestDriverMoves stops the driver and starts it with another topology, and then without any: the instance goes on at the
// new place, and ends when there is none.
func TestDriverMoves(t *testing.T) {
	cluster, driver := kubeapitest.NewCluster(newClass()), newNodeDriver("n1")
	path := filepath.Join(t.TempDir(), "csi.sock")
	stop := serveAt(t, driver, path)
	r, p := onSocket(t, cluster, path, onNode("n1"))
	place := func(claim string) func() bool { return func() bool { return homes(cluster)[claim] != "" } }
	apply(t, cluster, selected("a", "n1"))
	r.Eventually("the first claim has a volume", place("a"))

	stop()
	stop = serveAt(t, driver.OnNode("n1", map[string]string{"node": "elsewhere"}), path)
	r.Eventually("the instance knows the new place", func() bool {
		now, ok := p.now.Load().State().(state)
		return ok && now.Segment == "node=elsewhere" && now.Synced
	})
	apply(t, cluster, selected("b", "n1"))
	r.Eventually("the second claim has a volume", place("b"))
	if found := homes(cluster); found["a"] != "n1" || found["b"] != "elsewhere" {
		t.Errorf("volumes %v", found)
	}

	stop()
	stop = serveAt(t, driver.OnNode("n1", nil), path)
	if err := r.Wait(); err == nil || !strings.Contains(err.Error(), "accessible_topology") {
		t.Errorf("ended with %v, want an error about the topology", err)
	}
	stop()
}

// selected returns a claim for a node.
func selected(name, node string) kube.Object {
	claim := newClaim(name)
	claim.Annotations["volume.kubernetes.io/selected-node"] = node
	return claim
}
