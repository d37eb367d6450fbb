package volume

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/driverkit"
)

func TestCheckID(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     string
		err    error
	}{
		"UUID":        {reason: "what the driver makes", in: "0f6f1c1e-5d1c-4c6c-8a59-1f6f8b0e7b11"},
		"Inline":      {reason: "what the kubelet makes", in: "csi-" + strings.Repeat("0a", 32)},
		"Longest":     {reason: "128 bytes are allowed", in: strings.Repeat("x", MaxIDLength)},
		"DotInside":   {reason: "a dot inside is harmless", in: "a.b_c"},
		"Empty":       {reason: "an empty name is the directory itself", in: "", err: driverkit.ErrInvalid},
		"TooLong":     {reason: "129 bytes are not", in: strings.Repeat("x", MaxIDLength+1), err: driverkit.ErrInvalid},
		"Dot":         {reason: "the directory itself", in: ".", err: driverkit.ErrInvalid},
		"DotDot":      {reason: "the directory above", in: "..", err: driverkit.ErrInvalid},
		"Escape":      {reason: "upstream deletes ../victim", in: "../victim", err: driverkit.ErrInvalid},
		"Slash":       {reason: "no path", in: "a/b", err: driverkit.ErrInvalid},
		"Absolute":    {reason: "no path from the root", in: "/etc", err: driverkit.ErrInvalid},
		"Backslash":   {reason: "no path elsewhere either", in: `a\b`, err: driverkit.ErrInvalid},
		"NUL":         {reason: "system calls would cut it", in: "a\x00b", err: driverkit.ErrInvalid},
		"Newline":     {reason: "it would break log lines", in: "a\nb", err: driverkit.ErrInvalid},
		"Option":      {reason: "no option of a command", in: "-rf", err: driverkit.ErrInvalid},
		"Hidden":      {reason: "hidden files are the driver's", in: ".tmp-x", err: driverkit.ErrInvalid},
		"Space":       {reason: "plain characters only", in: "a b", err: driverkit.ErrInvalid},
		"NotASCII":    {reason: "plain characters only", in: "vólume", err: driverkit.ErrInvalid},
		"NotUTF8":     {reason: "nor broken ones", in: "a\xffb", err: driverkit.ErrInvalid},
		"NotUTF8Long": {reason: "the message stays readable", in: strings.Repeat("\xff", 500), err: driverkit.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := CheckID(c.in)
			if !errors.Is(err, c.err) {
				t.Fatalf("%s: CheckID(%q): error %v, want %v", c.reason, c.in, err, c.err)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("%s: message of %d bytes", c.reason, len(err.Error()))
			}
		})
	}
}

func TestCheckNodeID(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		in     string
		err    error
	}{
		"Longest": {"256 bytes are allowed for nodes", strings.Repeat("n", 256), nil},
		"TooLong": {"257 are not", strings.Repeat("n", 257), driverkit.ErrInvalid},
		"Path":    {"a node has a directory", "../n", driverkit.ErrInvalid},
	} {
		if err := CheckNodeID(c.in); !errors.Is(err, c.err) {
			t.Errorf("%s: %s: error %v, want %v", name, c.reason, err, c.err)
		}
	}
}

func FuzzCheckID(f *testing.F) {
	for _, seed := range []string{"a", "..", "../x", "a/b", "\x00", "é", "-x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		if CheckID(in) != nil {
			return
		}
		joined := filepath.Join("/state/volumes", in)
		if filepath.Dir(joined) != "/state/volumes" || filepath.Base(joined) != in {
			t.Errorf("CheckID(%q) allows %q", in, joined)
		}
	})
}

func TestCloneSharesNothingThatChanges(t *testing.T) {
	original := func() *Volume {
		return &Volume{ID: "v", MutableParameters: map[string]string{"a": "b"}, Published: []Publication{{Node: "n1"}}}
	}
	v := original()
	c := v.Clone()
	c.MutableParameters["a"], c.Published[0].Node = "c", "n2"
	if diff := cmp.Diff(original(), v); diff != "" {
		t.Errorf("a change of the clone reached the original (-want +got):\n%s", diff)
	}
}

func TestPublishedNodes(t *testing.T) {
	v := &Volume{Published: []Publication{{Node: "n2"}, {Node: "n1"}}}
	if diff := cmp.Diff([]string{"n1", "n2"}, v.PublishedNodes()); diff != "" {
		t.Errorf("PublishedNodes (-want +got):\n%s", diff)
	}
	if v.PublishedOn("n1") == nil || v.PublishedOn("n3") != nil {
		t.Errorf("PublishedOn: n1 %v, n3 %v, want one and nil", v.PublishedOn("n1"), v.PublishedOn("n3"))
	}
	if got := (&Volume{}).PublishedNodes(); got == nil || len(got) != 0 {
		t.Errorf("PublishedNodes of an unpublished volume: %#v, want an empty list", got)
	}
}

func TestCapabilityOf(t *testing.T) {
	got := CapabilitiesOf([]driverkit.Capability{
		{Block: true, Mode: driverkit.MultiNodeMultiWriter},
		{FSType: "xfs", Mode: driverkit.SingleNodeWriter, MountFlags: []string{"ro", "noatime"}},
	})
	want := []Capability{
		{Access: "block", Mode: "MULTI_NODE_MULTI_WRITER"},
		{Access: "mount", Mode: "SINGLE_NODE_WRITER", FSType: "xfs", MountFlags: []string{"noatime", "ro"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("capabilities as records have them (-want +got):\n%s", diff)
	}
}

func TestCapabilityEqual(t *testing.T) {
	base := Capability{Access: accessMount, Mode: "SINGLE_NODE_WRITER", MountFlags: []string{"ro", "noatime"}}
	reordered := base
	reordered.MountFlags = []string{"noatime", "ro"}
	if !base.Equal(reordered) {
		t.Error("the order of mount flags must not count")
	}
	if diff := cmp.Diff([]string{"ro", "noatime"}, base.MountFlags); diff != "" {
		t.Errorf("comparing has changed its argument:\n%s", diff)
	}
	for name, change := range map[string]func(c *Capability){
		"Access": func(c *Capability) { c.Access = accessBlock },
		"Mode":   func(c *Capability) { c.Mode = "MULTI_NODE_MULTI_WRITER" },
		"FSType": func(c *Capability) { c.FSType = "xfs" },
		"Flags":  func(c *Capability) { c.MountFlags = []string{"ro"} },
	} {
		other := base
		if change(&other); base.Equal(other) {
			t.Errorf("%s must count", name)
		}
	}
}

func TestVolumeForm(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     Volume
		want   Form
	}{
		"Directory": {reason: "mounted, and no file system of its own", in: Volume{Capabilities: []Capability{{Access: accessMount}}}},
		"Device":    {reason: "as it was made", in: Volume{Capabilities: []Capability{{Access: accessBlock}}}, want: Form{Disk: true}},
		"Image":     {reason: "the record has the type", in: Volume{FSType: "xfs", Capabilities: []Capability{{Access: accessMount}}}, want: Form{Disk: true, FSType: "xfs"}},
		"Old":       {reason: "a record without capabilities is of a directory"},
	}
	for name, c := range cases {
		if got := c.in.Form(); got != c.want {
			t.Errorf("%s: %s: %v, want %v", name, c.reason, got, c.want)
		}
	}
}

func TestCheckUse(t *testing.T) {
	directory, device, image := &Volume{ID: "v"}, &Volume{ID: "v", Capabilities: []Capability{{Access: accessBlock}}}, &Volume{ID: "v", FSType: "ext4"}
	cases := map[string]struct {
		reason string
		volume *Volume
		use    driverkit.Capability
		err    error
	}{
		"Directory":        {reason: "as it was made", volume: directory, use: mounted(driverkit.SingleNodeWriter)},
		"Device":           {reason: "as it was made", volume: device, use: block(driverkit.SingleNodeWriter)},
		"Image":            {reason: "as it was made", volume: image, use: typed("ext4")},
		"ImageUntyped":     {reason: "the type need not be named", volume: image, use: mounted(driverkit.SingleNodeWriter)},
		"ImageOtherType":   {reason: "it has another one", volume: image, use: typed("xfs"), err: driverkit.ErrInvalid},
		"BlockOfDirectory": {reason: "a directory is no device", volume: directory, use: block(driverkit.SingleNodeWriter), err: driverkit.ErrInvalid},
		"BlockOfImage":     {reason: "nor is an image: its user sees files", volume: image, use: block(driverkit.SingleNodeWriter), err: driverkit.ErrInvalid},
		"MountOfDevice":    {reason: "a device is no directory", volume: device, use: mounted(driverkit.SingleNodeWriter), err: driverkit.ErrInvalid},
		"TypeOfDirectory":  {reason: "a directory has no file system of its own", volume: directory, use: typed("ext4"), err: driverkit.ErrInvalid},
		"WritersOfImage":   {reason: "the form decides on the access mode", volume: image, use: mounted(driverkit.MultiNodeMultiWriter), err: driverkit.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.volume.CheckUse(c.use); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func TestCheckSame(t *testing.T) {
	writer, reader := mounted(driverkit.SingleNodeWriter), mounted(driverkit.MultiNodeReaderOnly)
	existing := &Volume{
		ID: "id", Name: "name", Parameters: map[string]string{"kind": "fast"}, MutableParameters: map[string]string{"readAheadKiB": "4"},
		Capabilities: CapabilitiesOf([]driverkit.Capability{writer, reader}),
	}
	same := func() *driverkit.CreateRequest {
		return &driverkit.CreateRequest{Name: "name", Parameters: map[string]string{"kind": "fast"}, Capabilities: []driverkit.Capability{writer, reader}}
	}
	restored := *existing
	restored.Source = &Source{Snapshot: "snap"}
	from := func(source driverkit.Source) func(*driverkit.CreateRequest) {
		return func(r *driverkit.CreateRequest) { r.Source = &source }
	}
	cases := map[string]struct {
		reason   string
		change   func(*driverkit.CreateRequest)
		restored bool
		err      error
	}{
		"SameSource":   {reason: "a repeated call", restored: true, change: from(driverkit.Source{Snapshot: "snap"})},
		"OtherSource":  {reason: "it has the data of another snapshot", restored: true, change: from(driverkit.Source{Snapshot: "other"}), err: driverkit.ErrExists},
		"OtherKind":    {reason: "a volume is no snapshot", restored: true, change: from(driverkit.Source{Volume: "snap"}), err: driverkit.ErrExists},
		"NoSource":     {reason: "it has data", restored: true, change: func(*driverkit.CreateRequest) {}, err: driverkit.ErrExists},
		"FromNone":     {reason: "it is empty, and the restored data would be missing", change: from(driverkit.Source{Snapshot: "snap"}), err: driverkit.ErrExists},
		"Same":         {reason: "a repeated call", change: func(*driverkit.CreateRequest) {}},
		"OtherOrder":   {reason: "capabilities are a set", change: func(r *driverkit.CreateRequest) { r.Capabilities = []driverkit.Capability{reader, writer} }},
		"Modified":     {reason: "mutable parameters may have been modified since", change: func(r *driverkit.CreateRequest) { r.MutableParameters = map[string]string{"readAheadKiB": "8"} }},
		"Parameters":   {reason: "upstream answers OK", change: func(r *driverkit.CreateRequest) { r.Parameters = map[string]string{"kind": "slow"} }, err: driverkit.ErrExists},
		"NoParameters": {reason: "also when they are missing", change: func(r *driverkit.CreateRequest) { r.Parameters = nil }, err: driverkit.ErrExists},
		"Block": {reason: "upstream answers OK with a mount volume", err: driverkit.ErrExists,
			change: func(r *driverkit.CreateRequest) {
				r.Capabilities = []driverkit.Capability{block(driverkit.SingleNodeWriter)}
			}},
		"FewerModes": {reason: "fewer capabilities are others", change: func(r *driverkit.CreateRequest) { r.Capabilities = r.Capabilities[:1] }, err: driverkit.ErrExists},
		"MoreModes": {reason: "so are more", err: driverkit.ErrExists,
			change: func(r *driverkit.CreateRequest) {
				r.Capabilities = append(r.Capabilities, mounted(driverkit.SingleNodeReaderOnly))
			}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			req := same()
			c.change(req)
			found := existing
			if c.restored {
				found = &restored
			}
			if err := found.CheckSame(req); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func TestCheckAttach(t *testing.T) {
	on := func(node string, mode driverkit.AccessMode, readOnly bool) []Publication {
		return []Publication{{Node: node, ReadOnly: readOnly, Capability: CapabilityOf(mounted(mode))}}
	}
	to := func(node string, mode driverkit.AccessMode, readOnly bool) driverkit.AttachRequest {
		return driverkit.AttachRequest{Node: node, ReadOnly: readOnly, Capability: mounted(mode)}
	}
	const lone, multi, single, readers = driverkit.SingleNodeWriter, driverkit.MultiNodeMultiWriter, driverkit.MultiNodeSingleWriter, driverkit.MultiNodeReaderOnly
	cases := map[string]struct {
		reason    string
		published []Publication
		req       driverkit.AttachRequest
		attached  bool
		err       error
	}{
		"First":       {reason: "no other node has it", req: to("n1", lone, false)},
		"Again":       {reason: "the same call", published: on("n1", lone, false), req: to("n1", lone, false), attached: true},
		"ReadOnly":    {reason: "same node, other flag", published: on("n1", lone, false), req: to("n1", lone, true), err: driverkit.ErrExists},
		"OtherMode":   {reason: "same node, other capability", published: on("n1", lone, false), req: to("n1", multi, false), err: driverkit.ErrExists},
		"SecondNode":  {reason: "one node only", published: on("n1", lone, false), req: to("n2", lone, false), err: driverkit.ErrInUse},
		"SecondMulti": {reason: "many nodes", published: on("n1", multi, false), req: to("n2", multi, false)},
		"MixedSingle": {reason: "the first one was promised to be alone", published: on("n1", lone, false), req: to("n2", readers, false), err: driverkit.ErrInUse},
		"MixedMulti":  {reason: "the second one wants to be alone", published: on("n1", readers, false), req: to("n2", lone, false), err: driverkit.ErrInUse},
		"ManyWritersOfOneNode": {reason: "many writers of one node are one node", published: on("n1", driverkit.SingleNodeMultiWriter, false),
			req: to("n2", driverkit.SingleNodeMultiWriter, false), err: driverkit.ErrInUse},
		"TwoWriters":    {reason: "one node writes", published: on("n1", single, false), req: to("n2", single, false), err: driverkit.ErrInUse},
		"SingleAndMany": {reason: "whichever capability says so", published: on("n1", single, false), req: to("n2", multi, false), err: driverkit.ErrInUse},
		"ManyAndSingle": {reason: "whichever capability says so", published: on("n1", multi, false), req: to("n2", single, false), err: driverkit.ErrInUse},
		"Reader":        {reason: "a reader beside the writer", published: on("n1", single, false), req: to("n2", single, true)},
		"FirstWriter":   {reason: "a writer beside a reader", published: on("n1", single, true), req: to("n2", single, false)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v := &Volume{ID: "v", Published: c.published}
			attached, err := v.CheckAttach(&c.req)
			if !errors.Is(err, c.err) || attached != c.attached {
				t.Errorf("%s: attached %t, %v, want %t, %v", c.reason, attached, err, c.attached, c.err)
			}
			if errors.Is(err, driverkit.ErrInUse) && !strings.Contains(err.Error(), "n1") {
				t.Errorf("%s: error %v must name the node n1", c.reason, err)
			}
		})
	}
}

// source returns the random numbers of the test's seed.
func source(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seeds.One(t), 0))
}

func pick[T any](random *rand.Rand, list []T) T { return list[random.IntN(len(list))] }

// TestAttachmentsStayLegal attaches and detaches at random. In any order, a volume is on two nodes only when all its attachments allow that, a node
// that writes as the only one is the only one, and a repeated request never changes anything.
func TestAttachmentsStayLegal(t *testing.T) {
	random := source(t)
	nodes := []string{"n1", "n2", "n3"}
	modes := []driverkit.AccessMode{
		driverkit.SingleNodeWriter, driverkit.SingleNodeReaderOnly, driverkit.SingleNodeSingleWriter, driverkit.SingleNodeMultiWriter,
		driverkit.MultiNodeReaderOnly, driverkit.MultiNodeSingleWriter, driverkit.MultiNodeMultiWriter,
	}
	v := &Volume{ID: "v"}
	refused, attached, repeated := 0, 0, 0
	for range 20_000 {
		if random.IntN(4) == 0 && len(v.Published) > 0 {
			at := random.IntN(len(v.Published))
			v.Published = append(v.Published[:at:at], v.Published[at+1:]...)
			continue
		}
		req := &driverkit.AttachRequest{ID: "v", Node: pick(random, nodes), ReadOnly: random.IntN(2) == 0, Capability: mounted(pick(random, modes))}
		again, err := v.CheckAttach(req)
		switch {
		case err != nil:
			refused++
		case again:
			repeated++
		default:
			attached++
			v.Published = append(v.Published, Publication{Node: req.Node, ReadOnly: req.ReadOnly, Capability: CapabilityOf(req.Capability)})
			if again, err := v.CheckAttach(req); !again || err != nil {
				t.Fatalf("the same request again: %t, %v", again, err)
			}
		}
		checkAttachments(t, v)
	}
	if refused == 0 || attached == 0 || repeated == 0 {
		t.Errorf("refused %d, attached %d, repeated %d: each must occur", refused, attached, repeated)
	}
}

func checkAttachments(t *testing.T, v *Volume) {
	t.Helper()
	seen, writers, lone := map[string]bool{}, 0, false
	for _, p := range v.Published {
		if seen[p.Node] {
			t.Fatalf("node %s is there twice: %+v", p.Node, v.Published)
		}
		seen[p.Node] = true
		if len(v.Published) > 1 && !strings.HasPrefix(p.Capability.Mode, "MULTI_NODE") {
			t.Fatalf("%s shares the volume: %+v", p.Capability.Mode, v.Published)
		}
		if !p.ReadOnly {
			writers++
			lone = lone || p.Capability.Mode == "MULTI_NODE_SINGLE_WRITER"
		}
	}
	if lone && writers > 1 {
		t.Fatalf("%d nodes write: %+v", writers, v.Published)
	}
}

func TestCheckReachable(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		node   string
		err    error
	}{
		"Own": {"where it is", "n1", nil}, "Everywhere": {"a shared directory", "", nil}, "Another": {"out of reach", "n2", driverkit.ErrPrecondition},
	} {
		if err := (&Volume{Node: c.node}).CheckReachable("n1"); !errors.Is(err, c.err) {
			t.Errorf("%s: %s: error %v, want %v", name, c.reason, err, c.err)
		}
	}
	if got := Segments("n1"); len(got) != 1 || got[0][TopologyKey] != "n1" || Segments("") != nil {
		t.Errorf("segments of n1: %v, of every node: %v", got, Segments(""))
	}
}

func TestCheckSnapshotParameters(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     map[string]string
		err    error
	}{
		"None":       {reason: "nothing wrong"},
		"Upstream":   {reason: "existing classes have it", in: map[string]string{"ignoreFailedRead": "true"}},
		"Suite":      {reason: "the storage suite of Kubernetes has it in classes", in: map[string]string{"deletionPolicy": "Delete"}},
		"Kubernetes": {reason: "what the snapshotter adds", in: map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "x"}},
		"Unknown":    {reason: "a misspelt key", in: map[string]string{"ignorefailedread": "true"}, err: driverkit.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := CheckSnapshotParameters(c.in)
			if !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
			if err != nil && !strings.Contains(err.Error(), "ignorefailedread") {
				t.Errorf("%s: %q does not name the key", c.reason, err)
			}
		})
	}
}
