package hostpathdriver

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tale is a sequence of calls that ends with everything deleted.
type tale struct {
	name string
	setup
	// safe is the number of acts at the beginning without faults, over that of acts
	// at the end: other tales have faults in them.
	safe, over int
	acts       []act
}

func tales() []tale {
	directory := disk{name: "pvc-1", size: mib}
	block := disk{name: "pvc-1", size: mib, block: true}
	ext4 := disk{name: "pvc-1", size: 4 * mib, fsType: "ext4"}
	xfs := disk{name: "pvc-1", size: 300 * mib, fsType: "xfs"}
	other := disk{name: "pvc-2", size: mib, block: true}
	return []tale{
		{name: "directory", acts: slices.Concat(directory.up(), directory.grown(2*mib), []act{directory.modify("iops", "100"), directory.verify("old")}, directory.down())},
		{name: "device", acts: slices.Concat(block.up(), block.grown(2*mib), block.down())},
		{name: "image, ext4", acts: slices.Concat(ext4.up(), ext4.down())},
		// That of ext4 grows in TestWalkGrown.
		{name: "image, xfs", acts: slices.Concat(xfs.up(), xfs.grown(320*mib), xfs.down())},
		xfs.expanded("expansion by the controller, image", byController, xfs.expandOnController(320*mib), xfs.verify("old"), xfs.sized(320*mib)),
		xfs.expanded("expansion by the node, image", byNode, xfs.expandOnNode(320*mib), xfs.verify("old"), xfs.sized(320*mib)),
		xfs.expanded("expansion by a node alone, image", byNode, xfs.expandOnNode(320*mib), xfs.verify("old"), xfs.sized(320*mib)).with(setup{expansion: byNode, nodeAlone: true}),
		xfs.expanded("offline expansion, image", offline, slices.Concat(
			xfs.pause(), []act{xfs.expandOnController(320 * mib), xfs.stage(), xfs.publish(), xfs.verify("old"), xfs.sized(320 * mib)},
		)...),
		block.modified("modified device"),
		ext4.modified("modified image"),
		{name: "attached", setup: setup{attach: true}, acts: slices.Concat(
			[]act{directory.create(), directory.attach(), directory.stage(), directory.unstage(), directory.detach(), directory.remove()},
		)},
		{name: "inline directory", acts: directory.inlined()},
		{name: "inline image", acts: ext4.inlined()},
		directory.cloned("clone of a directory"),
		block.cloned("clone of a device"),
		ext4.cloned("clone of an image"),
		directory.restored("restored directory"),
		block.restored("restored device"),
		ext4.restored("restored image"),
		ext4.restored("restored image, pool with a directory").with(setup{pool: true}),
		{name: "inline directory, pool with a directory", setup: setup{pool: true}, acts: directory.inlined()},
		{name: "group", acts: []act{
			directory.create(), directory.write("old"), other.create(), other.write("old"),
			group("group", directory, other), directory.write("new"), other.write("new"),
			directory.stage(), directory.unstage(),
			directory.of("pvc-3", memberOf("group", directory)).create(), directory.of("pvc-3", "").verify("old"),
			directory.of("pvc-3", "").remove(), removeGroup("group", directory, other), directory.remove(), other.remove(),
		}},
		block.grouped("group in use"),
	}
}

func (story tale) with(s setup) tale { story.setup = s; return story }

// up is the beginning of a life, down is its end.
func (d disk) up() []act {
	return []act{d.create(), d.stage(), d.publish(), d.write("old"), d.verify("old")}
}

func (d disk) down() []act {
	return []act{d.unpublish(), d.unstage(), d.remove()}
}

func (d disk) grown(size int64) []act {
	return append(d.expand(size), d.verify("old"), d.sized(size))
}

// expanded is the life of a volume in use that is expanded in one of the forms.
func (d disk) expanded(name string, by expansion, acts ...act) tale {
	before, after := d.up(), d.down()
	return tale{name: name, setup: setup{expansion: by}, safe: len(before), over: len(after), acts: slices.Concat(before, acts, after)}
}

// modified is the life of a volume in use whose read-ahead is changed, also when it is
// staged the next time.
func (d disk) modified(name string) tale {
	before, after := d.up(), d.down()
	return tale{name: name, safe: len(before), over: len(after), acts: slices.Concat(
		before, []act{d.modify("readAheadKiB", "8192"), d.readAhead("8192"), d.modify("readAheadKiB", "64"), d.readAhead("64")},
		d.pause(), []act{d.stage(), d.readAhead("64"), d.publish(), d.verify("old")}, after,
	)}
}

func (d disk) inlined() []act {
	return []act{d.inline(), d.write("old"), d.verify("old"), d.unpublish()}
}

// of is a volume like this one, made of a snapshot.
func (d disk) of(name, snapshot string) disk {
	d.name, d.from = name, nil
	if snapshot != "" {
		d.from = fromSnapshot(snapshot)
	}
	return d
}

// cloned is the life of a clone, whose source is in use.
func (d disk) cloned(name string) tale {
	clone := d.of("pvc-2", "")
	clone.from = fromVolume(d.name)
	before := slices.Concat(d.up(), d.quiesce())
	return tale{name: name, safe: len(before), acts: slices.Concat(
		before, []act{clone.create()}, d.restage(), []act{clone.stage(), clone.publish(), clone.verify("old")}, clone.down(), d.down(),
	)}
}

// quiesce unstages an image before it is copied, and restage stages it again: without
// reflink the copy fails if its source is written to meanwhile, and a mounted file
// system may write at any moment.
func (d disk) quiesce() []act {
	if d.fsType == "" {
		return nil
	}
	return d.pause()
}

func (d disk) pause() []act {
	pause := []act{d.unpublish(), d.unstage()}
	for i := range pause {
		pause[i].undoes = false
	}
	return pause
}

func (d disk) restage() []act {
	if d.fsType == "" {
		return nil
	}
	return []act{d.stage(), d.publish()}
}

// grouped is the life of a group of a volume in use, and of one that nobody
// uses.
func (d disk) grouped(name string) tale {
	idle := disk{name: "pvc-2", size: mib}
	again := d.of("pvc-3", memberOf("group", d))
	before := append(d.up(), idle.create(), idle.write("old"))
	return tale{name: name, safe: len(before), acts: slices.Concat(
		before, []act{group("group", d, idle), d.write("new"), d.verify("new"), idle.write("new"), idle.stage(), idle.unstage()},
		[]act{again.create(), again.stage(), again.publish(), again.verify("old")}, again.down(),
		[]act{removeGroup("group", d, idle)}, d.down(), []act{idle.remove()},
	)}
}

// restored is the life of a snapshot that outlives its source.
func (d disk) restored(name string) tale {
	again := d.of("pvc-2", "snapshot")
	before := slices.Concat(d.up(), d.quiesce())
	return tale{name: name, safe: len(before), acts: slices.Concat(
		before, []act{d.snapshot("snapshot")}, d.restage(), []act{d.write("new"), d.verify("new")}, d.down(),
		[]act{again.create(), again.stage(), again.publish(), again.verify("old")}, again.down(), []act{removeSnapshot("snapshot")},
	)}
}

var exhaustive = flag.Bool("exhaustive", false, "let each fate happen at each fault point of TestWalk") //nolint:gochecknoglobals // a flag of the test binary

var every = flag.Int("every", 1, "visit each so many-th fault point of a tale of TestWalk") //nolint:gochecknoglobals // a flag of the test binary

// fate is what happens at a fault point, and after it.
type fate struct {
	// deadline lets the deadline of the call pass. Without it the driver is
	// killed.
	deadline bool
	// reboot takes the machine down, too.
	reboot bool
	// giveUp skips everything but what undoes.
	giveUp bool
}

// fault is a fault point.
type fault struct {
	name string
	// undoing says that what a CO never gives up is under way.
	undoing bool
}

// tell tells a tale to a driver that is interrupted at a fault point, and returns
// that fault point; nil if the tale has fewer.
func (story tale) tell(t *testing.T, f fate, at int) (met *fault) {
	t.Helper()
	w := newWalker(t, story.setup)
	if f.deadline {
		w.serve(at)
	} else {
		if story.safe == 0 {
			w.arm() // the start of the driver has fault points, too
		}
		w.launch(at)
	}
	gaveUp := false
	for i, a := range story.acts {
		if i == story.safe {
			w.arm()
		}
		if i == len(story.acts)-story.over {
			w.retire()
		}
		if gaveUp && !a.undoes {
			continue
		}
		point, err := w.attempt(a)
		for gaveUp && status.Code(err) == codes.FailedPrecondition && w.ctx.Err() == nil {
			_, err = w.attempt(a) // what nobody wants any more is being copied from it
		}
		if point != "" {
			met = &fault{name: a.name + ", " + point, undoing: a.undoes}
			gaveUp = f.giveUp && !a.undoes
			err = w.goOn(a, f, gaveUp)
		}
		if err != nil {
			t.Fatalf("interrupted in %v, %s: %v", met, a.name, err)
		}
	}
	if gaveUp {
		w.sweep()
	}
	w.finish()
	return met
}

// goOn is what follows on an interruption: a look at the machine, and the call
// again unless the CO gives up.
func (w *walker) goOn(a act, f fate, gaveUp bool) error {
	w.t.Helper()
	if f.deadline {
		w.checkClaims()
	} else {
		w.restart(f.reboot)
	}
	if gaveUp {
		return nil
	}
	return w.resume(a, !f.deadline && (f.reboot || !kernel()))
}

// resume repeats the call in which the driver has died. After a reboot it first
// stages and publishes the volumes in use again.
func (w *walker) resume(a act, rebooted bool) error {
	if rebooted && !a.undoes {
		for _, ready := range slices.Clone(w.ready) {
			if _, err := w.attempt(ready); err != nil {
				return fmt.Errorf("make ready again: %w", err)
			}
		}
	}
	_, err := w.attempt(a)
	return err
}

// count is what became of a tale.
type count struct{ points, kills, deadlines, leaks int }

// TestWalk kills the driver at each fault point of each tale, with SIGKILL and
// as a process of its own, in three ways: it is started again, the machine was
// down meanwhile, or the CO does not repeat what it wanted and only cleans up.
// At each fault point the deadline of the call passes as well, in a driver that
// lives on, and the CO repeats the call, or only cleans up.
// With -exhaustive all of this happens at each fault point, otherwise one of the five in turn. With -every=3, as in the tier of every change, a third of the
// fault points are visited, of each tale others.
// With -short only the first tales are told, one of each kind of volume.
func TestWalk(t *testing.T) {
	stories := tales()
	if testing.Short() {
		stories = stories[:3]
	}
	var mu sync.Mutex
	counts, names := map[string]count{}, map[string]bool{}
	t.Run("Tales", func(t *testing.T) {
		for first, story := range stories { // Those that begin alike have other fates there.
			if *exhaustive {
				first = everyFate
			}
			t.Run(story.name, func(t *testing.T) {
				t.Parallel()
				faults, c := story.walk(t, first)
				mu.Lock()
				defer mu.Unlock()
				counts[story.name] = c
				for _, f := range faults {
					names[f.name] = true
				}
			})
		}
	})
	if !testing.Short() && *every == 1 {
		compareCrashTable(t, counts, len(names))
	}
}

// everyFate lets each fate happen at each fault point.
const everyFate = -1

// walk tells a tale once for each of its fault points, with the fates in turn from the first one on, or with everyFate.
func (story tale) walk(t *testing.T, first int) (faults []fault, c count) {
	tell := func(f namedFate, at int) (met *fault) {
		passed := t.Run(fmt.Sprintf("%s%03d", f.name, at), func(t *testing.T) { met = story.tell(t, f.fate, at) })
		switch {
		case met == nil:
		case f.deadline:
			c.deadlines++
		default:
			c.kills++
		}
		if !passed {
			c.leaks++
		}
		return met
	}
	all := fates()
	for c.leaks == 0 {
		at, f := len(faults)+1, all[0]
		if first != everyFate {
			at, f = 1+first%*every+len(faults)**every, all[(first+len(faults))%len(all)]
		}
		met := tell(f, at)
		if met == nil && f.deadline {
			met = tell(all[0], at) // Only the start of a driver that is killed has fault points: this one may have more.
		}
		if met == nil {
			break
		}
		faults = append(faults, *met)
	}
	c.points = len(faults)
	if first != everyFate {
		return faults, c
	}
	for i, f := range faults {
		for _, other := range all[1:] {
			if !other.giveUp || !f.undoing {
				tell(other, i+1)
			}
		}
	}
	return faults, c
}

type namedFate struct {
	name string
	fate
}

// fates are those that are possible at a fault point, a restart first. Without the kernel each restart is a reboot. A CO never gives up a
// call that undoes.
func fates() []namedFate {
	all := []namedFate{{"Restart", fate{}}, {"Deadline", fate{deadline: true}}}
	if kernel() {
		all = append(all, namedFate{"Reboot", fate{reboot: true}})
	}
	return append(all, namedFate{"DeadlineGiveUp", fate{deadline: true, giveUp: true}}, namedFate{"GiveUp", fate{giveUp: true}})
}

// crashFile has a row for each tale.
const crashFile = "docs/crash.md"

// comparePoints compares the fault points and leaks of each tale with the table, whose other columns are those of -exhaustive.
func comparePoints(t *testing.T, text string, counts map[string]count) {
	t.Helper()
	for name, c := range counts {
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %s \| %d \| \d+ \| \d+ \| %d \|$`, regexp.QuoteMeta(name), c.points, c.leaks))
		if !row.MatchString(text) {
			t.Errorf("%s has no row of %q with %d fault points and %d leaks; -exhaustive with UPDATE_DOCS=1 writes it", crashFile, name, c.points, c.leaks)
		}
	}
}

// compareCrashTable compares the table in the documentation with what was
// counted, which without root is not the same.
func compareCrashTable(t *testing.T, counts map[string]count, names int) {
	t.Helper()
	var rows strings.Builder
	rows.WriteString("| calls with | fault points | kills | deadlines | leaks |\n|---|---|---|---|---|\n")
	total := count{}
	for _, story := range tales() {
		c := counts[story.name]
		total = count{total.points + c.points, total.kills + c.kills, total.deadlines + c.deadlines, total.leaks + c.leaks}
		fmt.Fprintf(&rows, "| %s | %d | %d | %d | %d |\n", story.name, c.points, c.kills, c.deadlines, c.leaks)
	}
	fmt.Fprintf(&rows, "| all | %d | %d | %d | %d |\n", total.points, total.kills, total.deadlines, total.leaks)
	t.Logf("%d different fault points\n%s", names, rows.String())
	if !kernel() || t.Failed() {
		return
	}
	text, err := os.ReadFile(crashFile)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(text), "| calls with |")
	if !found {
		t.Fatalf("%s has no table", crashFile)
	}
	if !*exhaustive {
		comparePoints(t, string(text), counts)
		return
	}
	if os.Getenv("UPDATE_DOCS") != "" {
		text = []byte(head + rows.String())
		if err := os.WriteFile(crashFile, text, 0o644); err != nil { // documentation is readable
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(text), head+rows.String()); diff != "" {
		t.Errorf("%s is not what has run, UPDATE_DOCS=1 writes it (-want +got):\n%s", crashFile, diff)
	}
}
