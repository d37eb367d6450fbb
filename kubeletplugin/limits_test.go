package kubeletplugin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/driver"
)

// nodeInfos is a NodeInfo that notes its calls.
type nodeInfos struct {
	mu    sync.Mutex
	calls []string
}

var _ NodeInfo = (*nodeInfos)(nil)

func (n *nodeInfos) note(call string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call)
	return nil
}

func (n *nodeInfos) Install(_ context.Context, driver string, info *csi.NodeGetInfoResponse) error {
	return n.note("install " + driver + " " + info.GetNodeId())
}

func (n *nodeInfos) Update(_ context.Context, driver string, info *csi.NodeGetInfoResponse) error {
	return n.note("update " + driver + " " + info.GetNodeId())
}

func (n *nodeInfos) Uninstall(_ context.Context, driver string) error {
	return n.note("uninstall " + driver)
}

// TestRefresh asks a registered driver again; what it answers goes to Update, and a failure changes nothing.
func TestRefresh(t *testing.T) {
	m, infos := newMachine(t), &nodeInfos{}
	m.config = func(c *Config) { c.NodeInfo = infos }
	m.start()
	if err := m.Refresh(t.Context(), driverName); err != nil {
		t.Fatal(err)
	}
	m.driver.Inject(csitest.Fault{Method: "NodeGetInfo", Code: codes.Unavailable})
	if err := m.Refresh(t.Context(), driverName); status.Code(err) != codes.Unavailable {
		t.Errorf("a driver that does not answer: %v", err)
	}
	m.driver.Heal()
	if err := m.Refresh(t.Context(), "other.example"); !errors.Is(err, driver.ErrNotRegistered) {
		t.Errorf("a driver that is not registered: %v", err)
	}
	if want := []string{"install " + driverName + " node-1", "update " + driverName + " node-1"}; !slices.Equal(infos.calls, want) {
		t.Errorf("calls %q, want %q", infos.calls, want)
	}
}

// TestExhaustedIsReported: only the two calls that give a node one volume more say something about its limit.
func TestExhaustedIsReported(t *testing.T) {
	var mu sync.Mutex
	var reported []string
	m := newMachine(t)
	m.config = func(c *Config) {
		c.Exhausted = func(driver string) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, driver)
		}
	}
	m.start()
	expect := func(reason string, want ...string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(reported, want) {
			t.Errorf("%s: reported %q, want %q", reason, reported, want)
		}
		reported = nil
	}
	m.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Code: codes.Internal, Times: 1})
	m.driver.Inject(csitest.Fault{Method: "NodeGetCapabilities", Code: codes.ResourceExhausted, Times: 1})
	if _, err := m.mount(pod("uid-1")); err != nil {
		t.Fatal(err)
	}
	expect("other errors and other methods")
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		if err := m.unmount("uid-1"); err != nil {
			t.Fatal(err)
		}
		m.driver.Inject(csitest.Fault{Method: method, Code: codes.ResourceExhausted, Times: 1})
		if _, err := m.mount(pod("uid-1")); err != nil {
			t.Fatal(err)
		}
		expect(method, driverName)
	}
}
