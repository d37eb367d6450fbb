package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestCreate(t *testing.T) {
	onNode := func(node string) driverkit.TopologyRequirement {
		return driverkit.TopologyRequirement{Requisite: []driverkit.Segments{{volume.TopologyKey: node}}}
	}
	cases := map[string]struct {
		reason   string
		change   func(r *driverkit.CreateRequest)
		topology bool
		size     int64
		err      error
	}{
		"Directory":  {reason: "of exactly the size", change: func(r *driverkit.CreateRequest) { r.Size.Required = mib + 1 }, size: mib + 1},
		"Device":     {reason: "in whole blocks", change: func(r *driverkit.CreateRequest) { asDevice(r); r.Size.Required = mib + 1 }, size: mib + volume.BlockSize},
		"Parameter":  {reason: "a misspelt one", change: func(r *driverkit.CreateRequest) { r.Parameters = map[string]string{"knid": "fast"} }, err: driverkit.ErrInvalid},
		"Pool":       {reason: "one that does not exist", change: inPool("slow"), err: driverkit.ErrInvalid},
		"Exhausted":  {reason: "more than the pool has", change: func(r *driverkit.CreateRequest) { r.Size.Required = gib + 1 }, err: driverkit.ErrExhausted},
		"TooLarge":   {reason: "more than a volume may have", change: func(r *driverkit.CreateRequest) { r.Size.Required = 11 * gib }, err: driverkit.ErrOutOfRange},
		"Mutable":    {reason: "a directory has no read-ahead", change: func(r *driverkit.CreateRequest) { r.MutableParameters = map[string]string{"readAheadKiB": "4"} }, err: driverkit.ErrInvalid},
		"NoVolume":   {reason: "a source that does not exist", change: ofVolume("none"), err: driverkit.ErrNotFound},
		"NoSnapshot": {reason: "a source that does not exist", change: ofSnapshot("none"), err: driverkit.ErrNotFound},
		"Here":       {reason: "where it can be", topology: true, change: func(r *driverkit.CreateRequest) { r.Topology = onNode(testNode) }, size: mib},
		"Elsewhere":  {reason: "where it cannot be", topology: true, change: func(r *driverkit.CreateRequest) { r.Topology = onNode("node-2") }, err: driverkit.ErrExhausted},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits, w.config.Topology = map[string]int64{"fast": gib}, c.topology
			s := w.start()
			v, err := s.Create(w.ctx, request("pvc-1", c.change))
			w.want(c.reason, err, c.err)
			if err != nil {
				w.wantNothing()
				w.wantLeft(s, "fast", gib)
				return
			}
			again, err := s.Create(w.ctx, request("pvc-1", c.change))
			w.must(err)
			diff(t, c.reason+": a repeated call", v, again)
			if v.Size != c.size || (len(v.Topology) > 0) != c.topology {
				t.Errorf("%s: %d bytes on %v, want %d", c.reason, v.Size, v.Topology, c.size)
			}
			w.wantLeft(s, "fast", gib-c.size)
			got, err := w.start().Get(w.ctx, &driverkit.GetRequest{ID: v.ID})
			w.must(err)
			diff(t, "after a restart", v, got)
			s = w.start()
			w.wantLeft(s, "fast", gib-c.size)
			w.must(w.delete(s, v.ID))
			w.wantLeft(s, "fast", gib)
			w.wantNothing()
		})
	}
}

func TestCapacity(t *testing.T) {
	free := func(w *world) int64 {
		f, err := freeOf(w.dir)
		w.must(err)
		return f.bytes
	}
	cases := map[string]struct {
		reason string
		limits map[string]int64
		in     driverkit.CapacityRequest
		// exact is the answer, unless disk is true: then it is a part of the free space of the disk more.
		exact int64
		disk  bool
		err   error
	}{
		"Pool":        {reason: "its size", limits: map[string]int64{"fast": mib, "slow": gib}, in: driverkit.CapacityRequest{Parameters: map[string]string{"kind": "fast"}}, exact: mib},
		"All":         {reason: "their sum", limits: map[string]int64{"fast": mib, "slow": mib}, exact: 2 * mib},
		"UnknownPool": {reason: "a mistake", limits: map[string]int64{"fast": mib}, in: driverkit.CapacityRequest{Parameters: map[string]string{"kind": "slow"}}, err: driverkit.ErrInvalid},
		"Parameter":   {reason: "a mistake, too", in: driverkit.CapacityRequest{Parameters: map[string]string{"knid": "fast"}}, err: driverkit.ErrInvalid},
		"Unserved":    {reason: "no volume can be like that", limits: map[string]int64{"fast": mib}, in: driverkit.CapacityRequest{Capabilities: []driverkit.Capability{raw(), mounted()}}},
		"Elsewhere":   {reason: "this node serves no other", limits: map[string]int64{"fast": mib}, in: driverkit.CapacityRequest{Topology: driverkit.Segments{volume.TopologyKey: "node-2"}}},
		"Here":        {reason: "this one it does", limits: map[string]int64{"fast": mib}, in: driverkit.CapacityRequest{Topology: driverkit.Segments{volume.TopologyKey: testNode}}, exact: mib},
		"NoPools":     {reason: "the disk", disk: true},
		"Unlimited":   {reason: "the disk, and the pool with a size", limits: map[string]int64{"fast": mib, "slow": volume.Unlimited}, exact: mib, disk: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits, w.config.Topology, w.config.MaxSize = c.limits, true, 1<<62
			s := w.start()
			before := free(w)
			got, err := s.Capacity(w.ctx, &c.in)
			w.want(c.reason, err, c.err)
			if err != nil {
				return
			}
			least, most := c.exact, c.exact
			if c.disk {
				least, most = c.exact+min(before, free(w))/2, c.exact+max(before, free(w))
			}
			if got.Available < least || got.Available > most || got.LargestVolume > got.Available {
				t.Errorf("%s: %+v, want %d to %d available", c.reason, got, least, most)
			}
		})
	}
}

func TestRounded(t *testing.T) {
	for _, in := range []int64{0, 1, 63, 64, 65, 12345, gib - 1, gib, gib + 1, 1<<62 + 12345} {
		got := rounded(in)
		if got > in || in-got > in/32 || rounded(got) != got {
			t.Errorf("rounded(%d) = %d, then %d: want a little less, and the same again", in, got, rounded(got))
		}
	}
	if a, b := rounded(100*gib), rounded(100*gib+4096); a != b {
		t.Errorf("a line of a log changes the capacity from %d to %d", a, b)
	}
}

// TestPoolsOfEachNode: one controller leads, and serves the calls of the others with the pools of their nodes.
func TestPoolsOfEachNode(t *testing.T) {
	w := newWorld(t)
	w.limits, w.config.Topology = map[string]int64{"fast": 2 * mib}, true
	s := w.start()
	other := WithNode(w.ctx, "node-2")
	for i := range 2 {
		for _, ctx := range []context.Context{w.ctx, other} {
			_, err := s.Create(ctx, request(fmt.Sprintf("pvc-%d-%v", i, ctx == other)))
			w.must(err)
		}
	}
	_, err := s.Create(other, request("pvc-9"))
	w.want("the pool of the other node is full", err, driverkit.ErrExhausted)
	s = w.start()
	for _, ctx := range []context.Context{w.ctx, other} {
		left, err := s.Capacity(ctx, &driverkit.CapacityRequest{})
		w.must(err)
		diff(t, "capacity after a restart", &driverkit.Capacity{}, left)
	}
	w.must(w.delete(s, s.volumes.find("pvc-0-true").ID))
	_, err = s.Create(w.ctx, request("pvc-9"))
	w.want("that of this node still is", err, driverkit.ErrExhausted)
	v, err := s.Create(other, request("pvc-9"))
	w.must(err)
	diff(t, "topology", volume.Segments("node-2"), v.Topology)
}

// TestControllerAlonePlaces: it has no node, and makes volumes for the node that the CO prefers.
func TestControllerAlonePlaces(t *testing.T) {
	segment := func(nodes ...string) (list []driverkit.Segments) {
		for _, node := range nodes {
			list = append(list, driverkit.Segments{volume.TopologyKey: node})
		}
		return list
	}
	zone := []driverkit.Segments{{"zone": "a"}}
	cases := map[string]struct {
		reason string
		in     driverkit.TopologyRequirement
		want   string
		err    error
	}{
		"Preferred":  {reason: "the scheduler's choice comes first", in: driverkit.TopologyRequirement{Requisite: segment("n1", "n2"), Preferred: segment("n2", "n1")}, want: "n2"},
		"Requisite":  {reason: "no preference", in: driverkit.TopologyRequirement{Requisite: segment("n3", "n1")}, want: "n3"},
		"Foreign":    {reason: "segments of others mean nothing", in: driverkit.TopologyRequirement{Preferred: zone, Requisite: segment("n1")}, want: "n1"},
		"Everywhere": {reason: "nothing required: every node reaches a shared directory"},
		"Path":       {reason: "a node has a directory, so its name must never be a path", in: driverkit.TopologyRequirement{Requisite: segment("../../etc")}, err: driverkit.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.config.NodeID, w.config.Topology = "", true
			v, err := w.start().Create(w.ctx, request("pvc-1", func(r *driverkit.CreateRequest) { r.Topology = c.in }))
			w.want(c.reason, err, c.err)
			if err == nil {
				diff(t, c.reason, volume.Segments(c.want), v.Topology)
			}
		})
	}
}

// TestPoolWhoseDiskIsMissing: volumes stay, nothing is forgotten, and all works when the disk is back.
func TestPoolWhoseDiskIsMissing(t *testing.T) {
	w, pool := poolWorld(t)
	s := w.start()
	v, device := w.create(s, inPool("disk")), w.create(s, func(r *driverkit.CreateRequest) { named("pvc-2")(r); inPool("disk")(r); asDevice(r) })
	snap := w.snapshot(s, "snap", v.ID)
	data := filepath.Join(pool, contents.Volumes, v.ID, "file")
	w.write(data, "data")
	w.must(os.Rename(pool, pool+"-away"))

	for other := range 2 { // Started with the disk and without it.
		for _, err := range []error{w.delete(s, v.ID), w.delete(s, device.ID), w.deleteSnapshot(s, snap.ID)} {
			w.want("deletion", err, driverkit.ErrUnavailable)
		}
		if list, err := s.List(w.ctx, &driverkit.ListRequest{}); len(list.Entries) != 2+other || err != nil {
			t.Errorf("%d volumes, %v, want both", len(list.Entries), err)
		}
		w.wantLeft(s, "disk", gib-3*mib)
		if _, err := s.Create(w.ctx, request("pvc-3", inPool("disk"))); err == nil {
			t.Error("a volume is made without the disk")
		}
		w.wantLeft(s, "disk", gib-3*mib)
		w.create(s, func(r *driverkit.CreateRequest) { named(fmt.Sprintf("other-%d", other))(r); inPool("slow")(r) })
		found, err := Health{&w.config.Config}.VolumeHealth(w.ctx, &driverkit.HealthRequest{ID: v.ID})
		if err != nil || len(found.Conditions) == 0 || found.Conditions[0].Reason != "ContentsUnreachable" {
			t.Errorf("health: %v, %v, want ContentsUnreachable", found, err)
		}
		s = w.start()
	}
	w.must(os.Rename(pool+"-away", pool))
	if got := w.read(data); got != "data" {
		t.Errorf("contents %q", got)
	}
	w.must(w.delete(s, v.ID), w.delete(s, device.ID), w.deleteSnapshot(s, snap.ID))
	w.must(w.delete(s, s.volumes.find("other-0").ID), w.delete(s, s.volumes.find("other-1").ID))
	w.wantLeft(s, "disk", gib)
	w.wantNothing(pool)
}

func TestContentsGoToTheDirectoryOfTheirPool(t *testing.T) {
	w, pool := poolWorld(t)
	s := w.start()
	v := w.create(s, inPool("disk"))
	w.write(filepath.Join(pool, contents.Volumes, v.ID, "file"), "data")
	snap := w.snapshot(s, "snap", v.ID)
	if got := w.read(filepath.Join(pool, contents.Snapshots, snap.ID, "file")); got != "data" {
		t.Errorf("snapshot: %q", got)
	}
	near := w.create(s, func(r *driverkit.CreateRequest) { named("near")(r); ofSnapshot(snap.ID)(r) })
	if got := w.read(filepath.Join(pool, contents.Volumes, near.ID, "file")); got != "data" {
		t.Errorf("a copy is in the pool of its source, where blocks can be shared: %q", got)
	}
	far := w.create(s, func(r *driverkit.CreateRequest) { named("far")(r); ofVolume(near.ID)(r); inPool("slow")(r) })
	if got := w.read(w.state(contents.Volumes, far.ID, "file")); got != "data" {
		t.Errorf("a copy in another pool: %q", got)
	}
	w.wantLeft(s, "disk", gib-3*mib)
	w.wantLeft(s, "slow", 2*gib-mib)
	// The pool of the source is full: the copy goes to another one.
	s.pools("").Adopt("disk", 0)
	_, err := s.pools(testNode).Reserve("disk", gib-3*mib)
	w.must(err)
	w.create(s, func(r *driverkit.CreateRequest) { named("full")(r); ofSnapshot(snap.ID)(r) })
	w.wantLeft(s, "slow", 2*gib-2*mib)
}

// TestDeleteOfUnknownObjectsPurgesTheirTrash: a call that was interrupted after the record was deleted is repeated.
func TestDeleteOfUnknownObjectsPurgesTheirTrash(t *testing.T) {
	w, pool := poolWorld(t)
	s := w.start()
	for _, root := range []string{w.config.StateDir, pool} {
		w.write(filepath.Join(root, "trash", "gone", "file"), "data")
	}
	w.want("volume", w.delete(s, "gone"), driverkit.ErrNotFound)
	w.wantNothing(pool)
	w.write(w.state("trash", "gone", "file"), "data")
	w.want("snapshot", w.deleteSnapshot(s, "gone"), driverkit.ErrNotFound)
	w.wantNothing(pool)
	for _, id := range []string{"..", "../volumes", "a/b", ""} {
		w.want("an id that is a path", w.delete(s, id), driverkit.ErrNotFound)
		w.want("an id that is a path", w.deleteSnapshot(s, id), driverkit.ErrNotFound)
	}
}

func TestDeleteInUse(t *testing.T) {
	for name, c := range map[string]struct {
		reason          string
		attach, protect bool
		err             error
	}{
		"Staged":           {reason: "it is deleted with a message in the log"},
		"StagedProtected":  {reason: "refused", protect: true, err: driverkit.ErrInUse},
		"Attached":         {reason: "it is deleted with a message in the log", attach: true},
		"AttachedProtectd": {reason: "refused", attach: true, protect: true, err: driverkit.ErrInUse},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.config.Attach, w.config.ProtectUsed = c.attach, c.protect
			s := w.start()
			n := w.startNode()
			v := w.create(s, nil)
			if c.attach {
				_, err := s.Attach(w.ctx, &driverkit.AttachRequest{ID: v.ID, Node: testNode, Capability: mounted()})
				w.must(err)
			} else {
				_, err := n.Stage(w.ctx, w.stage(v.ID, mounted()))
				w.must(err)
			}
			err := w.delete(s, v.ID)
			w.want(c.reason, err, c.err)
			if _, err := s.Get(w.ctx, &driverkit.GetRequest{ID: v.ID}); errors.Is(err, driverkit.ErrNotFound) != (c.err == nil) {
				t.Errorf("%s: afterwards %v", c.reason, err)
			}
			if c.err == nil && len(s.attached) > 0 {
				t.Errorf("attachments are counted: %v", s.attached)
			}
		})
	}
}

func TestAttach(t *testing.T) {
	w := newWorld(t)
	w.config.Attach, w.config.AttachLimit, w.config.Topology = true, 1, true
	s := w.start()
	v, second := w.create(s, nil), w.create(s, named("pvc-2"))
	attach := func(id, node string, c driverkit.Capability) error {
		_, err := s.Attach(w.ctx, &driverkit.AttachRequest{ID: id, Node: node, Capability: c})
		return err
	}
	for _, c := range []struct {
		reason, id, node string
		capability       driverkit.Capability
		err              error
	}{
		{"no such volume", "none", testNode, mounted(), driverkit.ErrNotFound},
		{"not as it was made", v.ID, testNode, raw(), driverkit.ErrInvalid},
		{"no name of a node", v.ID, "../n", mounted(), driverkit.ErrInvalid},
		{"out of reach", v.ID, "node-2", mounted(), driverkit.ErrPrecondition},
		{"the first", v.ID, testNode, mounted(), nil},
		{"again", v.ID, testNode, mounted(), nil},
		{"the limit of the node", second.ID, testNode, mounted(), driverkit.ErrExhausted},
		{"with another capability", v.ID, testNode, driverkit.Capability{Mode: driverkit.SingleNodeReaderOnly}, driverkit.ErrExists},
	} {
		w.want(c.reason, attach(c.id, c.node, c.capability), c.err)
	}
	s = w.start() // The limit counts what the records say.
	w.want("the limit after a restart", attach(second.ID, testNode, mounted()), driverkit.ErrExhausted)
	for range 2 {
		w.must(s.Detach(w.ctx, &driverkit.DetachRequest{ID: v.ID, Node: testNode}))
	}
	w.must(attach(second.ID, testNode, mounted()))
	w.must(s.Detach(w.ctx, &driverkit.DetachRequest{ID: second.ID, Node: "node-2"}))
	w.want("another node's attachment was detached", attach(v.ID, testNode, mounted()), driverkit.ErrExhausted)
	w.must(s.Detach(w.ctx, &driverkit.DetachRequest{ID: second.ID})) // From all nodes.
	w.must(attach(v.ID, testNode, mounted()))
	w.want("no such volume", s.Detach(w.ctx, &driverkit.DetachRequest{ID: "none"}), driverkit.ErrNotFound)
}

// TestAttachToUnknownNode: where nodes have directories, a node without one does not exist.
func TestAttachToUnknownNode(t *testing.T) {
	w := newWorld(t)
	w.config.Attach = true
	s := w.start()
	v := w.create(s, nil)
	request := &driverkit.AttachRequest{ID: v.ID, Node: "node-7", Capability: mounted()}
	w.startNode()
	_, err := s.Attach(w.ctx, request)
	w.want("a node that never ran", err, driverkit.ErrNotFound)
	w.config.NodeID = "node-7"
	w.startNode()
	_, err = s.Attach(w.ctx, request)
	w.must(err)
	request.Node = testNode
	_, err = s.Attach(w.ctx, request)
	w.want("a second node of a volume for one", err, driverkit.ErrInUse)
}

func TestExpand(t *testing.T) {
	cases := map[string]struct {
		reason  string
		change  func(r *driverkit.CreateRequest)
		in      driverkit.Range
		use     *driverkit.Capability
		want    int64
		onNode  bool
		charged int64
		err     error
	}{
		"Directory":  {reason: "exactly what is required", in: driverkit.Range{Required: 2*mib + 1}, want: 2*mib + 1, charged: 2*mib + 1},
		"Device":     {reason: "in whole blocks", change: asDevice, in: driverkit.Range{Required: 2*mib + 1}, want: 2*mib + volume.BlockSize, onNode: true, charged: 2*mib + volume.BlockSize},
		"Smaller":    {reason: "volumes do not shrink", in: driverkit.Range{Required: 1}, want: mib, charged: mib},
		"Same":       {reason: "it has that size", in: driverkit.Range{Required: mib, Limit: mib}, want: mib, charged: mib},
		"Limit":      {reason: "it would have to shrink", in: driverkit.Range{Limit: mib - 1}, err: driverkit.ErrOutOfRange, charged: mib},
		"TooLarge":   {reason: "more than a volume may have", in: driverkit.Range{Required: 11 * gib}, err: driverkit.ErrOutOfRange, charged: mib},
		"Tight":      {reason: "no whole block within the limit", change: asDevice, in: driverkit.Range{Required: mib + 1, Limit: mib + 2}, err: driverkit.ErrOutOfRange, charged: mib},
		"Exhausted":  {reason: "more than the pool has", in: driverkit.Range{Required: gib + 1}, err: driverkit.ErrExhausted, charged: mib},
		"Capability": {reason: "it is no device", in: driverkit.Range{Required: 2 * mib}, use: ptr(raw()), err: driverkit.ErrInvalid, charged: mib},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits = map[string]int64{"fast": gib}
			s := w.start()
			v := w.create(s, c.change)
			for range 2 {
				got, err := s.Expand(w.ctx, &driverkit.ExpandRequest{ID: v.ID, Size: c.in, Capability: c.use})
				w.want(c.reason, err, c.err)
				if err == nil && (got.Size != c.want || got.OnNode != c.onNode) {
					t.Errorf("%s: %+v, want %d bytes, on the node %t", c.reason, got, c.want, c.onNode)
				}
				w.wantLeft(s, "fast", gib-c.charged)
			}
			if info, err := os.Stat(w.state(contents.Volumes, v.ID, "disk")); c.onNode && (err != nil || info.Size() != c.want) {
				t.Errorf("%s: the file has %v bytes, %v", c.reason, info, err)
			}
			w.wantLeft(w.start(), "fast", gib-c.charged)
		})
	}
	w := newWorld(t)
	_, err := w.start().Expand(w.ctx, &driverkit.ExpandRequest{ID: "none"})
	w.want("no such volume", err, driverkit.ErrNotFound)
}

func ptr[T any](value T) *T { return &value }

func TestExpandOffline(t *testing.T) {
	w := newWorld(t)
	w.config.OfflineExpansion = true
	s, n := w.start(), w.startNode()
	v := w.create(s, nil)
	expand := func() error {
		_, err := s.Expand(w.ctx, &driverkit.ExpandRequest{ID: v.ID, Size: driverkit.Range{Required: 2 * mib}})
		return err
	}
	_, err := n.Stage(w.ctx, w.stage(v.ID, mounted()))
	w.must(err)
	w.want("staged", expand(), driverkit.ErrInUse)
	w.must(n.Unstage(w.ctx, w.unstage(v.ID)))
	_, err = s.Attach(w.ctx, &driverkit.AttachRequest{ID: v.ID, Node: testNode, Capability: mounted()})
	w.must(err)
	w.want("attached", expand(), driverkit.ErrInUse)
	w.must(s.Detach(w.ctx, &driverkit.DetachRequest{ID: v.ID, Node: testNode}), expand())
}

// TestExpandThatFailsChangesNothing: the file cannot be made larger.
func TestExpandThatFailsChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	s := w.start()
	v := w.create(s, asDevice)
	disk := w.state(contents.Volumes, v.ID, "disk")
	w.must(os.Rename(disk, disk+"-away"))
	if _, err := s.Expand(w.ctx, &driverkit.ExpandRequest{ID: v.ID, Size: driverkit.Range{Required: 2 * mib}}); err == nil {
		t.Error("no error")
	}
	w.wantLeft(s, "fast", gib-mib)
	if got, err := s.cfg.View(v.ID); err != nil || got.Capacity != mib {
		t.Errorf("the record: %+v, %v", got, err)
	}
}

func TestModify(t *testing.T) {
	w := newWorld(t)
	var changed []string
	w.config.Changed = func(_ context.Context, id string) error { changed = append(changed, id); return nil }
	s := w.start()
	v := w.create(s, asDevice)
	for _, c := range []struct {
		reason string
		id     string
		in     map[string]string
		err    error
	}{
		{"the driver's own", v.ID, map[string]string{"readAheadKiB": "128"}, nil},
		{"again", v.ID, map[string]string{"readAheadKiB": "128"}, nil},
		{"one that is only kept", v.ID, map[string]string{"tier": "gold"}, nil},
		{"all or none", v.ID, map[string]string{"readAheadKiB": "4", "teir": "gold"}, driverkit.ErrInvalid},
		{"no such volume", "none", nil, driverkit.ErrNotFound},
	} {
		w.want(c.reason, w.modify(s, &driverkit.ModifyRequest{ID: c.id, Parameters: c.in}), c.err)
	}
	diff(t, "parameters after a restart", map[string]string{"readAheadKiB": "128", "tier": "gold"}, w.start().volumes.find("pvc-1").MutableParameters)
	diff(t, "the node was told", []string{v.ID, v.ID, v.ID}, changed)
}

func TestValidate(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	v := w.create(s, asImage)
	for reason, c := range map[string]struct {
		in  driverkit.ValidateRequest
		err error
	}{
		"as it was made":        {driverkit.ValidateRequest{ID: v.ID, Capabilities: []driverkit.Capability{ext4(), mounted()}, Parameters: map[string]string{"mode": "0700"}}, nil},
		"one of them is not":    {driverkit.ValidateRequest{ID: v.ID, Capabilities: []driverkit.Capability{ext4(), raw()}}, driverkit.ErrInvalid},
		"a misspelt parameter":  {driverkit.ValidateRequest{ID: v.ID, Parameters: map[string]string{"mdoe": "0700"}}, driverkit.ErrInvalid},
		"no mutable parameter":  {driverkit.ValidateRequest{ID: v.ID, MutableParameters: map[string]string{"mdoe": "0700"}}, driverkit.ErrInvalid},
		"no such volume at all": {driverkit.ValidateRequest{ID: "none"}, driverkit.ErrNotFound},
	} {
		w.want(reason, s.Validate(w.ctx, &c.in), c.err)
	}
}

func TestListPages(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	for i := range 5 {
		w.create(s, named(fmt.Sprintf("pvc-%d", i)))
	}
	var ids, paged []string
	all, err := s.List(w.ctx, &driverkit.ListRequest{})
	w.must(err)
	for _, v := range all.Entries {
		ids = append(ids, v.ID)
	}
	for after := ""; ; {
		page, err := s.List(w.ctx, &driverkit.ListRequest{After: after, Limit: 2})
		w.must(err)
		if len(page.Entries) == 0 {
			break
		}
		for _, v := range page.Entries {
			paged = append(paged, v.ID)
		}
		after = page.Entries[len(page.Entries)-1].ID
		w.must(w.delete(s, after)) // A token stays valid when its volume is deleted.
	}
	diff(t, "pages", ids, paged)
	if shown := s.cfg.Show(); len(shown.Volumes) != 2 {
		t.Errorf("/debug/state shows %d volumes, want 2", len(shown.Volumes))
	}
}

// TestDamagedRecord: it is moved aside, and its contents stay.
func TestDamagedRecord(t *testing.T) {
	w := newWorld(t)
	s := w.start()
	v := w.create(s, nil)
	w.write(w.state(recordsDir, v.ID+".json"), "{")
	for range 2 {
		s = w.start()
		if _, err := s.Get(w.ctx, &driverkit.GetRequest{ID: v.ID}); !errors.Is(err, driverkit.ErrNotFound) {
			t.Errorf("Get: %v", err)
		}
		if !s.volumes.known(v.ID) || gone(w.state(contents.Volumes, v.ID)) {
			t.Error("the contents of a volume whose record is damaged are gone")
		}
	}
}
