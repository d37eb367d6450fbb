package measure

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// conflict marks writes that were refused because another one had come before.
const conflict = " (conflict)"

// Writes counts writes to the API by user, as testbed.ShortUser names it, and by verb, resource and subresource ("patch volumeattachments/status").
type Writes map[string]map[string]int

// Add adds other counts.
func (w Writes) Add(others Writes) {
	for who, whats := range others {
		for what, n := range whats {
			w.add(who, what, n)
		}
	}
}

func (w Writes) add(who, what string, n int) {
	if w[who] == nil {
		w[who] = map[string]int{}
	}
	w[who][what] += n
}

// users lists the users that wrote anything.
func (w Writes) users() []string { return slices.Sorted(maps.Keys(w)) }

// Conflicts returns the number of writes of a user that were refused, because another one had come before.
func (w Writes) Conflicts(who string) (n int) {
	for what, count := range w[who] {
		if strings.HasSuffix(what, conflict) {
			n += count
		}
	}
	return n
}

// By returns the number of writes of a user.
func (w Writes) By(who string) (n int) {
	for _, count := range w[who] {
		n += count
	}
	return n
}

// Table returns a table of the counts, divided by the number of claims.
func (w Writes) Table(claims int) string {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHO\tWRITES\tPER CLAIM")
	for _, who := range w.users() {
		fmt.Fprintf(t, "%s\t\t%.2f\n", who, float64(w.By(who))/float64(claims))
		for _, what := range slices.Sorted(maps.Keys(w[who])) {
			fmt.Fprintf(t, "\t%s\t%.2f\n", what, float64(w[who][what])/float64(claims))
		}
	}
	t.Flush()
	return b.String()
}

// Events returns the number of writes of a user that were about events.
func (w Writes) Events(user string) (n int) {
	for what, count := range w[user] {
		if strings.Contains(what, "events") {
			n += count
		}
	}
	return n
}

// AuditFrom marks the end of the audit log of a development cluster. The function that it returns counts the writes since then. Both fail the test if the log
// cannot be read.
func AuditFrom(t testing.TB, d *testbed.Dev) func() Writes {
	t.Helper()
	path := d.Log("audit")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatalf("audit log: %v", err)
	}
	return func() Writes {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("audit log: %v", err)
		}
		// Lines that were being written at one of the two moments are left out.
		whole := text[:bytes.LastIndexByte(text, '\n')+1]
		from := min(bytes.LastIndexByte(text[:info.Size()], '\n')+1, len(whole))
		if from < int(info.Size()) {
			from += bytes.IndexByte(whole[from:], '\n') + 1
		}
		w, err := count(bytes.NewReader(whole[from:]))
		if err != nil {
			t.Fatalf("audit log: %v", err)
		}
		return w
	}
}

func count(r io.Reader) (Writes, error) {
	w := Writes{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		e, err := testbed.ReadAudit(lines.Bytes())
		if err != nil {
			return nil, err
		}
		if e.Reads() {
			continue
		}
		what := e.Verb + " " + e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			what += "/" + e.ObjectRef.Subresource
		}
		if e.ResponseStatus.Code == http.StatusConflict {
			what += conflict
		}
		switch {
		case e.ImpersonatedUser.Username != "": // in Leases, too, where it may keep records of claims
			w.add(testbed.ShortUser(e.ImpersonatedUser.Username), what, 1)
		case e.ObjectRef.Resource != "leases": // heartbeats have nothing to do with claims
			w.add(testbed.ShortUser(e.User.Username), what, 1)
		}
	}
	return w, lines.Err()
}
