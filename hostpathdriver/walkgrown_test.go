package hostpathdriver

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
)

//go:embed docs/crash.md
var crashText string

// TestWalkGrown is the part of TestWalk for machines where ext4 grows while it
// is in use: root of a container may lack the right, that of a virtual machine
// has it. With -short it has one of the five fates in turn at each fault point.
func TestWalkGrown(t *testing.T) {
	if !kernel() || !filesystem.GrowsMounted() {
		t.Skip("needs CAP_SYS_RESOURCE, which this process lacks")
	}
	d := disk{name: "pvc-1", size: 4 * mib, fsType: "ext4"}
	before, after := d.up(), d.down()
	story := tale{name: "image, ext4, grown", safe: len(before), over: len(after), acts: slices.Concat(before, d.grown(64*mib), after)}
	first := everyFate
	if testing.Short() {
		first = 0
	}
	faults, c := story.walk(t, first)
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	t.Logf("killed at %q", names)
	want := fmt.Sprintf("%d fault points, %d kills, %d deadlines, %d leaks", c.points, c.kills, c.deadlines, c.leaks)
	if testing.Short() {
		want = fmt.Sprintf("\n%d fault points, ", c.points)
	}
	if c.leaks > 0 || !strings.Contains(crashText, want) {
		t.Errorf("%s does not say %q", crashFile, want)
	}
}
