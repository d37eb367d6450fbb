package nodeobj

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func template() Template {
	return Template{
		Name: "node-1", IP: "10.0.0.1", MaxPods: 110,
		CPU: 4, Memory: 8 << 30, Storage: 1 << 40,
	}
}

type bench struct {
	api    *kubetest.Cluster
	keeper *Keeper
	view   *View
}

// scenario runs a Keeper whose view follows the API without a watch.
func scenario(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{api: kubetest.New(), view: &View{}}
		var err error
		b.keeper, err = New(Config{Template: template(), Nodes: b.api.Client().Nodes(), View: b.view})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.keeper.Run(ctx) })
		synctest.Wait()
		f(t, b)
		cancel()
		wg.Wait()
	})
}

func (b *bench) node(t *testing.T) *corev1.Node {
	t.Helper()
	synctest.Wait()
	n, err := b.api.Client().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (b *bench) patch(t *testing.T, patch string) {
	t.Helper()
	n, err := b.api.Client().Nodes().Patch(t.Context(), "node-1", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	b.view.Observe(n)
}

func ready(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func TestRegister(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		n := b.node(t)
		wantLabels := map[string]string{
			"kubernetes.io/hostname": "node-1", "kubernetes.io/os": "linux", "kubernetes.io/arch": n.Labels["kubernetes.io/arch"],
		}
		if diff := cmp.Diff(wantLabels, n.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		if n.Annotations[ManagedAnnotation] != "true" {
			t.Errorf("annotations %v", n.Annotations)
		}
		if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil && n.Status.NodeInfo.BootID != strings.TrimSpace(string(boot)) {
			t.Errorf("boot ID %q, want the kernel's, %s", n.Status.NodeInfo.BootID, boot)
		}
		if c := ready(n); c.Status != corev1.ConditionFalse {
			t.Errorf("a node is not ready before it is said to be: %+v", c)
		}
		b.keeper.SetReady(nil)
		if c := ready(b.node(t)); c.Status != corev1.ConditionTrue {
			t.Errorf("ready condition is %+v", c)
		}
		b.keeper.SetReady(errors.New("no CSINode"))
		if c := ready(b.node(t)); c.Status != corev1.ConditionFalse || c.Message != "no CSINode" {
			t.Errorf("ready condition is %+v, want the reason", c)
		}
	})
}

// TestQuiet: nothing is written while nothing changes, except for the heartbeat.
func TestQuiet(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.keeper.SetReady(nil)
		before := b.node(t)
		time.Sleep(4 * time.Minute)
		if after := b.node(t); after.ResourceVersion != before.ResourceVersion {
			t.Errorf("the node was written although nothing has changed")
		}
		time.Sleep(2 * time.Minute)
		after := b.node(t)
		if !ready(after).LastHeartbeatTime.After(ready(before).LastHeartbeatTime.Time) {
			t.Error("no heartbeat in 6 minutes")
		}
		if !ready(after).LastTransitionTime.Time.Equal(ready(before).LastTransitionTime.Time) {
			t.Error("a heartbeat is no transition")
		}
	})
}

// TestRepair puts back what somebody else has taken away, and leaves alone what is others'.
func TestRepair(t *testing.T) {
	cases := map[string]struct {
		reason string
		patch  string
		ok     func(*corev1.Node) bool
	}{
		"Annotation": {reason: "ours", patch: `{"metadata":{"annotations":{"` + ManagedAnnotation + `":null}}}`, ok: func(n *corev1.Node) bool { return n.Annotations[ManagedAnnotation] == "true" }},
		"Label":      {reason: "ours", patch: `{"metadata":{"labels":{"kubernetes.io/os":"no"}}}`, ok: func(n *corev1.Node) bool { return n.Labels["kubernetes.io/os"] == "linux" }},
		"Capacity":   {reason: "ours", patch: `{"status":{"capacity":{"pods":"1"}}}`, ok: func(n *corev1.Node) bool { return n.Status.Capacity.Pods().Value() == 110 }},
		"Addresses": {
			reason: "replaced as a whole", patch: `{"status":{"addresses":[{"type":"ExternalIP","address":"1.2.3.4"}]}}`,
			ok: func(n *corev1.Node) bool { return len(n.Status.Addresses) == 2 },
		},
		"OtherLabel":  {reason: "a driver's", patch: `{"metadata":{"labels":{"zone":"a"}}}`, ok: func(n *corev1.Node) bool { return n.Labels["zone"] == "a" }},
		"OtherStatus": {reason: "the attach/detach controller's", patch: `{"status":{"volumesAttached":[{"name":"v","devicePath":""}],"capacity":{"pods":"1"}}}`, ok: func(n *corev1.Node) bool { return len(n.Status.VolumesAttached) == 1 }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				b.patch(t, tc.patch)
				time.Sleep(11 * time.Second)
				if n := b.node(t); !tc.ok(n) {
					t.Errorf("%s: node is %+v, %+v", tc.reason, n.ObjectMeta, n.Status)
				}
			})
		})
	}
}

func TestWriteInUse(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		for _, names := range [][]string{{"a", "b"}, nil} {
			if err := b.keeper.WriteInUse(t.Context(), names); err != nil {
				t.Fatal(err)
			}
			if got := b.view.Node().Status.VolumesInUse; len(got) != len(names) {
				t.Errorf("volumesInUse is %v, want %v", got, names)
			}
		}
	})
}

// TestMadeAgain: the Node is deleted, once noticed by the watch, once by a write.
func TestMadeAgain(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		for _, notice := range []func(*corev1.Node){
			func(n *corev1.Node) { b.view.Gone(n); b.keeper.Poke() },
			func(*corev1.Node) { b.keeper.Verify() },
			func(*corev1.Node) {
				if err := b.keeper.WriteInUse(t.Context(), []string{"a"}); err == nil {
					t.Error("writing to a node that is gone: no error")
				}
			},
		} {
			old := b.node(t)
			if err := b.api.Client().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			notice(old)
			if n := b.node(t); n.UID == old.UID {
				t.Error("the node is still the old one")
			}
		}
	})
}

func TestServerAway(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.api.Fail("patch", "nodes", errors.New("away"), 3)
		b.keeper.SetReady(nil)
		time.Sleep(5 * time.Second)
		if c := ready(b.node(t)); c.Status != corev1.ConditionTrue {
			t.Errorf("ready condition is %+v", c)
		}
	})
}

func TestViewNeverGoesBack(t *testing.T) {
	node := func(uid types.UID, version string, attached ...corev1.UniqueVolumeName) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: version}}
		for _, a := range attached {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: a})
		}
		return n
	}
	var seen []string
	v := &View{}
	v.OnChange(func(_, n *corev1.Node) { seen = append(seen, n.ResourceVersion) })
	for _, n := range []*corev1.Node{node("u1", "10", "a"), node("u1", "9"), node("u1", "10"), node("u1", "100", "b"), node("u1", "99", "a")} {
		v.Observe(n)
	}
	if diff := cmp.Diff([]string{"10", "100"}, seen); diff != "" {
		t.Errorf("versions are numbers, and only newer ones count (-want +got):\n%s", diff)
	}
	if v.Attached("a") || !v.Attached("b") {
		t.Error("attached volumes are not those of the newest node")
	}
	v.Gone(node("u1", "101"))
	v.Observe(node("u1", "102", "a"))
	if v.Node() != nil || v.Attached("b") {
		t.Error("a late answer brought a deleted node back")
	}
	v.Observe(node("u2", "103"))
	if v.Node() == nil {
		t.Error("the next node of the name was ignored")
	}
	v.Answered(node("u2", "90"), node("u2", "80"))
	if v.Node().ResourceVersion != "103" {
		t.Error("a late answer has set the view back")
	}
	v.Answered(node("u2", "50", "c"), node("u2", "103"))
	v.Observe(node("u2", "51", "c", "d"))
	if v.Node().ResourceVersion != "51" || !v.Attached("d") {
		t.Error("the view knows nothing of what has happened since etcd was restored")
	}
}

func TestConditionsOrder(t *testing.T) {
	all := Conditions(nil, nil, metav1.Now())
	if last := all[len(all)-1]; last.Type != corev1.NodeReady {
		t.Errorf("the last condition is %s, want Ready", last.Type)
	}
}

func TestNewRefuses(t *testing.T) {
	_, err := New(Config{Template: Template{MaxPods: -1}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"name", "address", "-1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not tell about %q", err, part)
		}
	}
	if _, err := New(Config{Template: template()}); err == nil {
		t.Error("a keeper without a client: no error")
	}
}
