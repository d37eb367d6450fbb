package hostpathdriver

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// thing is what must be true of a volume.
type thing struct {
	disk
	// source is what it is a copy of; nil for one that is made empty.
	source *thing
	exists bool
	staged bool
	shown  bool
	// text is what was written last, saved what its snapshot has, if any.
	text        string
	saved       string
	hasSnapshot bool
}

// wanderer makes calls in any order to a driver that is killed at any moment.
type wanderer struct {
	*walker
	random *rand.Rand
	kills  int
}

// TestWalkAtRandom uses several volumes, with copies and snapshots, in any
// order, while the driver is killed at random fault points, during its start as
// well, and the machine goes down now and then.
func TestWalkAtRandom(t *testing.T) { seeds.Each(t, walkAtRandom) }

func walkAtRandom(t *testing.T, seed uint64) {
	w := &wanderer{walker: newWalker(t, setup{pool: seed%2 == 0}), random: rand.New(rand.NewPCG(seed, 0))}
	var things []*thing
	for _, d := range []disk{{name: "directory", size: mib}, {name: "device", size: mib, block: true}, {name: "image", size: 4 * mib, fsType: "ext4"}} {
		source := &thing{disk: d}
		things = append(things, source, &thing{disk: d.of("copy of "+d.name, ""), source: source})
	}
	w.arm()
	w.live(1)
	const steps = 100
	for range steps {
		w.wander(things[w.random.IntN(len(things))])
	}
	for _, one := range slices.Backward(things) { // copies go first
		w.end(one)
	}
	w.finish()
	t.Logf("%d kills", w.kills)
	if w.kills == 0 {
		t.Error("the driver was never killed")
	}
}

// live starts a driver that has some time to live: more of it where more calls
// are to be repeated, which would else never come to an end.
func (w *wanderer) live(calls int) { w.launch(1 + w.random.IntN(10*(1+calls))) }

// insist repeats a call, however often the driver dies in it.
func (w *wanderer) insist(a act) {
	w.t.Helper()
	for queue := []act{a}; len(queue) > 0; {
		point, err := w.attempt(queue[0])
		if err != nil {
			w.t.Fatalf("%s on %s after %d kills: %v", queue[0].name, queue[0].on, w.kills, err)
		}
		if point == "" {
			queue = queue[1:]
			continue
		}
		w.kills++
		if !kernel() || w.random.IntN(4) == 0 {
			w.powerOff()
			queue = append(slices.Clone(w.ready), a)
		}
		w.live(len(queue))
	}
}

// wander does something with a volume that a CO could do now.
func (w *wanderer) wander(v *thing) {
	w.t.Helper()
	could := v.choices()
	if len(could) > 0 {
		could[w.random.IntN(len(could))](w)
	}
}

// quiet reports whether a copy can be made: a file system in use may write at
// any moment.
func (v *thing) quiet() bool { return v.exists && (v.fsType == "" || !v.staged) }

func (v *thing) snapshotName() string { return "snapshot of " + v.name }

// choices are the calls that have to succeed.
func (v *thing) choices() []func(w *wanderer) {
	var could []func(w *wanderer)
	add := func(possible bool, do func(w *wanderer)) {
		if possible {
			could = append(could, do)
		}
	}
	add(!v.exists && v.source == nil, func(w *wanderer) { w.make(v, v.disk, "") })
	add(!v.exists && v.source != nil && v.source.quiet(), func(w *wanderer) {
		clone := v.disk
		clone.from = fromVolume(v.source.name)
		w.make(v, clone, v.source.text)
	})
	add(!v.exists && v.source != nil && v.source.hasSnapshot, func(w *wanderer) {
		w.make(v, v.of(v.name, v.source.snapshotName()), v.source.saved)
	})
	add(v.source == nil && v.quiet() && !v.hasSnapshot, func(w *wanderer) {
		w.insist(v.snapshot(v.snapshotName()))
		v.hasSnapshot, v.saved = true, v.text
	})
	add(v.hasSnapshot, func(w *wanderer) { w.unsnapshot(v) })
	add(v.exists && !v.staged, func(w *wanderer) { w.insist(v.stage()); v.staged = true })
	add(v.exists && !v.staged, func(w *wanderer) { w.remove(v) })
	add(v.staged && !v.shown, func(w *wanderer) { w.insist(v.publish()); v.shown = true })
	add(v.staged && !v.shown, func(w *wanderer) { w.insist(v.unstage()); v.staged = false })
	add(v.shown, func(w *wanderer) {
		v.text = fmt.Sprintf("%03d", w.random.IntN(1000))
		w.insist(v.write(v.text))
	})
	add(v.shown && v.text != "", func(w *wanderer) { w.insist(v.verify(v.text)) })
	add(v.shown, func(w *wanderer) { w.insist(v.unpublish()); v.shown = false })
	return could
}

func (w *wanderer) make(v *thing, d disk, text string) {
	w.insist(d.create())
	v.exists, v.text = true, text
}

func (w *wanderer) remove(v *thing) {
	w.insist(v.remove())
	delete(w.ids, v.name)
	v.exists, v.text = false, ""
}

func (w *wanderer) unsnapshot(v *thing) {
	w.insist(removeSnapshot(v.snapshotName()))
	delete(w.ids, v.snapshotName())
	v.hasSnapshot = false
}

// end looks once more at what a volume contains, and deletes it.
func (w *wanderer) end(v *thing) {
	w.t.Helper()
	if v.exists {
		w.insist(v.stage())
		w.insist(v.publish())
		if v.text != "" {
			w.insist(v.verify(v.text))
		}
		w.insist(v.unpublish())
		w.insist(v.unstage())
		w.remove(v)
	}
	if v.hasSnapshot {
		w.unsnapshot(v)
	}
}
