package nodeobj

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestStale: a Node is written if something of ours is wrong, and for nothing else.
func TestStale(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	later := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(d)) }
	cases := map[string]struct {
		reason   string
		change   func(*corev1.Node)
		notReady error
		at       metav1.Time
		want     bool
	}{
		"Same":             {reason: "nothing to do", at: later(time.Minute)},
		"Heartbeat":        {reason: "it is time to show life", at: later(5 * time.Minute), want: true},
		"NotReady":         {reason: "another status", at: now, notReady: errors.New("no"), want: true},
		"OtherLabel":       {reason: "not ours", change: func(n *corev1.Node) { n.Labels["zone"] = "a" }, at: now},
		"LabelChanged":     {reason: "ours", change: func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "no" }, at: now, want: true},
		"NoLabels":         {reason: "ours", change: func(n *corev1.Node) { n.Labels = nil }, at: now, want: true},
		"NoAnnotations":    {reason: "the controller would not attach", change: func(n *corev1.Node) { n.Annotations = nil }, at: now, want: true},
		"OtherAnnotation":  {reason: "not ours", change: func(n *corev1.Node) { n.Annotations["x"] = "y" }, at: now},
		"Allocatable":      {reason: "the scheduler reads it", change: func(n *corev1.Node) { delete(n.Status.Allocatable, corev1.ResourceCPU) }, at: now, want: true},
		"OtherResource":    {reason: "a device plugin's", change: func(n *corev1.Node) { n.Status.Capacity["x.example/gpu"] = n.Status.Capacity[corev1.ResourceCPU] }, at: now},
		"Address":          {reason: "ours as a whole", change: func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[:1] }, at: now, want: true},
		"Version":          {reason: "another agent or kubelet had the node", change: func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.20.0" }, at: now, want: true},
		"ConditionGone":    {reason: "ours", change: func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[1:] }, at: now, want: true},
		"ConditionUnknown": {reason: "the node controller has given us up", change: func(n *corev1.Node) { n.Status.Conditions[3].Status = corev1.ConditionUnknown }, at: now, want: true},
		"Message":          {reason: "the reason is what people read", change: func(n *corev1.Node) { n.Status.Conditions[3].Message = "?" }, at: now, want: true},
		"OtherCondition": {reason: "not ours", change: func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "NetworkUnavailable"})
		}, at: now},
		"Attached": {reason: "the attach/detach controller's", change: func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}} }, at: now},
		"InUse":    {reason: "written by another way", change: func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"} }, at: now},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tmpl := template()
			node := tmpl.Object(Conditions(nil, nil, now))
			if tc.change != nil {
				tc.change(node)
			}
			conditions := Conditions(node.Status.Conditions, tc.notReady, tc.at)
			if got := tmpl.stale(node, conditions, 5*time.Minute); got != tc.want {
				t.Errorf("%s: stale is %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestConditions(t *testing.T) {
	before := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	now := metav1.NewTime(before.Add(time.Hour))
	cases := map[string]struct {
		reason   string
		old      []corev1.NodeCondition
		notReady error
		status   corev1.ConditionStatus
		message  string
		since    metav1.Time
	}{
		"New":       {reason: "it has just become so", status: corev1.ConditionTrue, message: "node agent is ready for volumes", since: now},
		"StillGood": {reason: "no transition", old: Conditions(nil, nil, before), status: corev1.ConditionTrue, message: "node agent is ready for volumes", since: before},
		"Fails": {
			reason: "a transition", old: Conditions(nil, nil, before), notReady: errors.New("no CSINode"),
			status: corev1.ConditionFalse, message: "no CSINode", since: now,
		},
		"FailsOtherwise": {
			reason: "another reason is no transition", old: Conditions(nil, errors.New("starting"), before), notReady: errors.New("no CSINode"),
			status: corev1.ConditionFalse, message: "no CSINode", since: before,
		},
		"Recovers": {
			reason: "a transition", old: Conditions(nil, errors.New("starting"), before),
			status: corev1.ConditionTrue, message: "node agent is ready for volumes", since: now,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			all := Conditions(tc.old, tc.notReady, now)
			got := all[len(all)-1]
			if got.Status != tc.status || got.Message != tc.message || !got.LastTransitionTime.Equal(&tc.since) {
				t.Errorf("%s: got %+v", tc.reason, got)
			}
			for _, c := range all {
				if !c.LastHeartbeatTime.Equal(&now) {
					t.Errorf("%s: heartbeat of %s is %v, want now", tc.reason, c.Type, c.LastHeartbeatTime)
				}
				if c.Type != corev1.NodeReady && c.Status != corev1.ConditionFalse {
					t.Errorf("%s: there is pressure: %+v", tc.reason, c)
				}
			}
		})
	}
}

// TestInUsePatch: an empty list is written as such; null would leave what is there.
func TestInUsePatch(t *testing.T) {
	cases := map[string]struct {
		reason string
		names  []string
		want   string
	}{
		"None":  {reason: "nil must clear the list", want: `{"status":{"volumesInUse":[]}}`},
		"Empty": {reason: "so must an empty list", names: []string{}, want: `{"status":{"volumesInUse":[]}}`},
		"Some":  {reason: "as given", names: []string{"a", "b"}, want: `{"status":{"volumesInUse":["a","b"]}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := InUsePatch(tc.names)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("%s, -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestStatusPatchTouchesOnlyOurs: what it does not name stays as it is.
func TestStatusPatchTouchesOnlyOurs(t *testing.T) {
	tmpl := template()
	data, err := tmpl.StatusPatch(Conditions(nil, nil, metav1.Now()))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for part, fields := range map[string][]string{
		"metadata": {"annotations", "labels"},
		"status":   {"addresses", "allocatable", "capacity", "conditions", "nodeInfo"},
	} {
		if len(got[part]) != len(fields) {
			t.Errorf("%s has %d fields, want %v: %v", part, len(got[part]), fields, got[part])
		}
		for _, f := range fields {
			if _, ok := got[part][f]; !ok {
				t.Errorf("%s has no %s", part, f)
			}
		}
	}
	if len(got) != 2 {
		t.Errorf("the patch is %s", data)
	}
}

// TestVerifyIsTriedAgain: a write that was asked for and did not reach the server is still needed.
func TestVerifyIsTriedAgain(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.keeper.SetReady(nil)
		old := b.node(t)
		if err := b.api.Client().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.api.Fail("patch", "nodes", errors.New("away"), 2)
		b.keeper.Verify()
		time.Sleep(5 * time.Second)
		if n := b.node(t); n.UID == old.UID {
			t.Error("the node is still the old one")
		}
	})
}

// TestExistingNode: a Node that a kubelet or an earlier agent has made is taken over, not replaced.
func TestExistingNode(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		before := b.node(t)
		if _, err := New(Config{Template: template(), Nodes: b.api.Client().Nodes(), View: &View{}}); err != nil {
			t.Fatal(err)
		}
		k, err := New(Config{Template: template(), Nodes: b.api.Client().Nodes(), View: &View{}})
		if err != nil {
			t.Fatal(err)
		}
		if err := k.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-k.Registered():
		default:
			t.Error("not registered, although the node exists")
		}
		if after := b.node(t); after.UID != before.UID {
			t.Error("the node was created again")
		}
	})
}

// TestRegisterErrors name the node and what was attempted.
func TestRegisterErrors(t *testing.T) {
	for verb, want := range map[string]string{
		"get": `get node "node-1": away`, "create": `create node "node-1": away`,
	} {
		t.Run(verb, func(t *testing.T) {
			api := kubetest.New()
			api.Fail(verb, "nodes", errors.New("away"), 0)
			k, err := New(Config{Template: template(), Nodes: api.Client().Nodes(), View: &View{}})
			if err != nil {
				t.Fatal(err)
			}
			if err := k.sync(t.Context()); err == nil || err.Error() != want {
				t.Errorf("got %v, want %q", err, want)
			}
			select {
			case <-k.Registered():
				t.Error("registered without a node")
			default:
			}
		})
	}
}
