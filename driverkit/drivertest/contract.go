package drivertest

import (
	"os"
	"slices"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
)

// contract calls the driver's functions directly, as often as a CO may.
func (s *settings) contract(t *testing.T) {
	m := s.newMachine(t)
	if err := os.Mkdir(m.path("co"), 0o700); err != nil {
		t.Fatal(err)
	}
	b := m.driver.Provisioner
	first := s.mustCreate(t, b, "contract-1")
	if again := s.mustCreate(t, b, "contract-1"); again.ID != first.ID || again.Size != first.Size {
		t.Errorf("create the same name again: volume %q with %d bytes, want the same volume %q with %d bytes", again.ID, again.Size, first.ID, first.Size)
	}
	second := s.mustCreate(t, b, "contract-2")
	if second.ID == first.ID {
		t.Errorf("create another name: the same id %q", first.ID)
	}
	for _, v := range []*driverkit.Volume{first, second} {
		got, err := b.Get(t.Context(), &driverkit.GetRequest{ID: v.ID, Secrets: s.secrets})
		if err != nil || got.ID != v.ID || got.Size != v.Size {
			t.Errorf("get volume %q: %+v, %v, want %+v", v.ID, got, err, v)
		}
	}
	s.checkList(t, m, first.ID, second.ID)
	s.checkRestart(t, m, first)
	for _, v := range []*driverkit.Volume{first, second} {
		s.checkDelete(t, m, v)
	}
	m.checkLeaks(t)
}

// checkDelete deletes a volume that was never staged, twice.
func (s *settings) checkDelete(t *testing.T, m *machine, v *driverkit.Volume) {
	t.Helper()
	if err := m.driver.Stager.Unstage(t.Context(), &driverkit.UnstageRequest{ID: v.ID, Path: m.path("co/never")}); err != nil {
		t.Errorf("unstage volume %q, which was never staged: %v, want success", v.ID, err)
	}
	for i := range 2 {
		err := m.driver.Provisioner.Delete(t.Context(), &driverkit.DeleteRequest{ID: v.ID, Secrets: s.secrets})
		if i > 0 && driverkit.IsNotFound(err, v.ID) {
			err = nil // The kit takes it for success.
		}
		if err != nil {
			t.Errorf("delete volume %q, call %d: %v", v.ID, i+1, err)
		}
	}
	if _, err := m.driver.Provisioner.Get(t.Context(), &driverkit.GetRequest{ID: v.ID, Secrets: s.secrets}); !driverkit.IsNotFound(err, v.ID) {
		t.Errorf("get volume %q after its deletion: %v, want driverkit.NotFound of it", v.ID, err)
	}
}

// request asks for a small volume.
func (s *settings) request(name string) *driverkit.CreateRequest {
	return &driverkit.CreateRequest{
		Name: name, Size: driverkit.Range{Required: 4 << 20}, Parameters: s.parameters, Secrets: s.secrets,
		Capabilities: []driverkit.Capability{{Block: s.block, Mode: driverkit.SingleNodeWriter}},
	}
}

func (s *settings) mustCreate(t *testing.T, b driverkit.Provisioner, name string) *driverkit.Volume {
	t.Helper()
	v, err := b.Create(t.Context(), s.request(name))
	if err != nil {
		t.Fatalf("create volume %q: %v", name, err)
	}
	if v.ID == "" || v.Size != 0 && v.Size < 4<<20 {
		t.Errorf("create volume %q: %+v, want an id, and the size of at least 4 MiB or 0", name, v)
	}
	return v
}

// checkRestart looks for a volume after a restart of the driver.
func (s *settings) checkRestart(t *testing.T, m *machine, want *driverkit.Volume) {
	t.Helper()
	m.create(nil)
	if got, err := m.driver.Provisioner.Get(t.Context(), &driverkit.GetRequest{ID: want.ID, Secrets: s.secrets}); err != nil || got.ID != want.ID {
		t.Errorf("get volume %q after a restart of the driver: %+v, %v", want.ID, got, err)
	}
	if again := s.mustCreate(t, m.driver.Provisioner, "contract-1"); again.ID != want.ID {
		t.Errorf("create the same name again after a restart of the driver: volume %q, want %q", again.ID, want.ID)
	}
}

// checkList reads the list whole and in pages of one.
func (s *settings) checkList(t *testing.T, m *machine, ids ...string) {
	t.Helper()
	if m.driver.List == nil {
		return
	}
	slices.Sort(ids)
	whole, err := m.driver.List(t.Context(), &driverkit.ListRequest{})
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	var listed, paged []string
	for _, v := range whole.Entries {
		listed = append(listed, v.ID)
	}
	for after := ""; len(paged) <= len(ids); {
		part, err := m.driver.List(t.Context(), &driverkit.ListRequest{After: after, Limit: 1})
		if err != nil {
			t.Fatalf("list after %q: %v", after, err)
		}
		if len(part.Entries) == 0 {
			break
		}
		after = part.Entries[len(part.Entries)-1].ID
		for _, v := range part.Entries {
			paged = append(paged, v.ID)
		}
	}
	if !slices.Equal(listed, ids) || !slices.Equal(paged, ids) {
		t.Errorf("list: %q, and in pages of one %q, want %q", listed, paged, ids)
	}
}
