package claim

import (
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

func TestPlanNode(t *testing.T) {
	group := "example.com"
	cases := map[string]struct {
		reason string
		change func(s *claimState)
		want   claimVerb
		why    string
	}{
		"WholeCluster": {reason: "Without a node there is no competition.", change: func(s *claimState) { s.node = view.Node{} }, want: claimCreate},
		"Own":          {reason: "A claim for the own node is provisioned.", change: selects("n1"), want: claimCreate},
		"OwnUnasked":   {reason: "Also where this node does not compete.", change: func(s *claimState) { selects("n1")(s); s.competes = false }, want: claimCreate},
		"OwnExcluded":  {reason: "Also where it would not have: CreateVolume decides.", change: func(s *claimState) { selects("n1")(s); s.excluded = errors.New("no") }, want: claimCreate},
		"LateUnselected": {
			reason: "The scheduler comes first.", change: func(s *claimState) { late(s.class) }, want: claimLeave, why: "no node was selected yet",
		},
		"LateOther": {
			reason: "With late binding there is no competition.", change: func(s *claimState) { late(s.class); selects("n2")(s) }, want: claimLeave, why: `"n2"`,
		},
		"LateOwn": {reason: "With late binding the scheduler has selected.", change: func(s *claimState) { late(s.class); selects("n1")(s) }, want: claimCreate},
		"Off":     {reason: "The flag says not to compete.", change: func(s *claimState) { s.competes = false }, want: claimLeave, why: "left to other nodes"},
		"OffOther": {
			reason: "Nor to look after others.", change: func(s *claimState) { s.competes = false; selects("n2")(s) }, want: claimLeave, why: "left to other nodes",
		},
		"Excluded": {reason: "The class allows other nodes only.", change: func(s *claimState) { s.excluded = errors.New("not in zone") }, want: claimLeave, why: "not in zone"},
		"Populator": {
			reason: "A volume populator does it.",
			change: func(s *claimState) {
				s.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Backup"}
			},
			want: claimLeave, why: "populator",
		},
		"New":   {reason: "No node has it.", change: func(*claimState) {}, want: claimCompete},
		"Unfit": {reason: "A claim that is to be refused is refused by the node that takes it.", change: func(s *claimState) { s.caps.Create = false }, want: claimCompete},
		"Held":  {reason: "The node that has it may be gone.", change: selects("n2"), want: claimCompete},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := claimState{driver: driver, caps: capabilities.Set{Create: true}, claim: fixtures.Claim(), class: fixtures.Class(), node: newNode(), competes: true}
			tc.change(&s)
			got := planClaim(s)
			if got.verb != tc.want || !strings.Contains(got.why, tc.why) || got.why == "" {
				t.Errorf("%s\nplan %+v, want verb %d because of %q", tc.reason, got, tc.want, tc.why)
			}
		})
	}
}

// selects returns a change that selects a node.
func selects(node string) func(*claimState) {
	return func(s *claimState) { s.claim.Annotations[view.AnnSelectedNode] = node }
}

// TestNoClaimIsServedByTwoNodes goes through all that a claim can say: of two nodes at most one asks for its volume, and
// none does before the claim names it.
func TestNoClaimIsServedByTwoNodes(t *testing.T) {
	flags(3, func(on func(int) bool) {
		for _, selected := range []string{"", "n1", "n2", "n3"} {
			creates := 0
			for _, name := range []string{"n1", "n2"} {
				s := claimState{driver: driver, caps: capabilities.Set{Create: true}, claim: fixtures.Claim(), class: fixtures.Class(), node: newNode(), competes: true}
				s.node.Name, s.competes = name, on(0)
				if on(1) {
					late(s.class)
				}
				if selected != "" {
					selects(selected)(&s)
				}
				if on(2) {
					s.excluded = errors.New("no")
				}
				plan := planClaim(s)
				if plan.verb == claimCreate {
					creates++
					if selected != name {
						t.Errorf("node %s asks for a volume of a claim that names %q", name, selected)
					}
				}
				if plan.verb == claimCompete && (on(1) || !on(0) || on(2) || selected == name) {
					t.Errorf("node %s competes: immediate %v, late %v, excluded %v, selected %q", name, on(0), on(1), on(2), selected)
				}
			}
			if creates > 1 {
				t.Errorf("a claim that names %q is served by %d nodes", selected, creates)
			}
		}
	})
}

// TestInsufficient asks the driver of a node for its capacity, for a claim of 1 GiB.
func TestInsufficient(t *testing.T) {
	cases := map[string]struct {
		reason  string
		options csitest.Options
		fault   csitest.Fault
		want    string
	}{
		"Unknown": {
			reason:  "A driver that does not report its capacity is taken to have enough.",
			options: csitest.Options{Capacity: 1, Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}},
		},
		"Equal": {reason: "Just enough is enough.", options: csitest.Options{Capacity: 1 << 30}},
		"Less":  {reason: "Less is not.", options: csitest.Options{Capacity: 1<<30 - 1}, want: `Node "n1" has not enough capacity for the volume: 1073741823 bytes are available, 1073741824 bytes are requested`},
		"Error": {reason: "An error is not.", fault: csitest.Fault{Method: "GetCapacity", Code: codes.Internal, Message: "disk\n gone"}, want: `GetCapacity failed on node "n1": get capacity: Internal: disk; gone`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			settings := rigSettings()
			settings.Node = newNode()
			onRigWith(t, tc.options, settings, func(t *testing.T, r *rig) {
				if tc.fault.Method != "" {
					r.Driver.Inject(tc.fault)
				}
				if got := r.insufficient(fixtures.Quiet(t), r.stateOf(fixtures.Quiet(t), fixtures.Claim())); got != tc.want {
					t.Errorf("%s\ngot %q, want %q", tc.reason, got, tc.want)
				}
			}, fixtures.Class())
		})
	}
}
