package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

// conflict marks writes that were refused because another one had come before.
const conflict = " (conflict)"

// Writes counts API writes by who made them and what they wrote ("patch volumeattachments/status").
type Writes map[string]map[string]int

// Add adds the counts of others.
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

// Users lists who wrote anything.
func (w Writes) Users() []string { return slices.Sorted(maps.Keys(w)) }

// Conflicts is how many writes of somebody were refused, because another one had come before.
func (w Writes) Conflicts(who string) (n int) {
	for what, count := range w[who] {
		if strings.HasSuffix(what, conflict) {
			n += count
		}
	}
	return n
}

// By is how many writes somebody made.
func (w Writes) By(who string) (n int) {
	for _, count := range w[who] {
		n += count
	}
	return n
}

// Table renders the counts, divided by the number of claims.
func (w Writes) Table(claims int) string {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHO\tWRITES\tPER CLAIM")
	for _, who := range w.Users() {
		fmt.Fprintf(t, "%s\t\t%.2f\n", who, float64(w.By(who))/float64(claims))
		for _, what := range slices.Sorted(maps.Keys(w[who])) {
			fmt.Fprintf(t, "\t%s\t%.2f\n", what, float64(w[who][what])/float64(claims))
		}
	}
	t.Flush()
	return b.String()
}

// AuditFrom marks the end of the audit log; the function that it returns counts the writes since then.
func (d *Dev) AuditFrom(t testing.TB) func() Writes {
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

// auditEvent is what is needed of audit.k8s.io/v1 Event.
type auditEvent struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	// ImpersonatedUser is the user of a program that is measured (see contest), and empty for all others.
	ImpersonatedUser struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, APIGroup, Namespace string }
	ResponseStatus   struct{ Code int }
}

// reads reports whether nothing was written. The log has reads, too, of some users.
func (e auditEvent) reads() bool { return slices.Contains([]string{"get", "list", "watch"}, e.Verb) }

// readAudit reads a line of the log. An API server that is killed may leave the beginning of a line, behind which the next one goes on.
func readAudit(line []byte) (e auditEvent, err error) {
	whole := max(0, bytes.LastIndex(line, []byte(`{"kind":"Event",`)))
	if err := json.Unmarshal(line[whole:], &e); err != nil {
		return e, fmt.Errorf("line %q: %w", line, err)
	}
	return e, nil
}

func count(r io.Reader) (Writes, error) {
	w := Writes{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		e, err := readAudit(lines.Bytes())
		if err != nil {
			return nil, err
		}
		if e.reads() {
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
			w.add(who(e.ImpersonatedUser.Username), what, 1)
		case e.ObjectRef.Resource != "leases": // heartbeats have nothing to do with claims
			w.add(who(e.User.Username), what, 1)
		}
	}
	return w, lines.Err()
}

// componentUser is what the names of the components' users begin with.
const componentUser = "longshore:"

// who shortens the names of users and puts all nodes together.
func who(user string) string {
	if strings.HasPrefix(user, "system:node:") {
		return "csi-node-agent"
	}
	user = strings.TrimPrefix(user, componentUser)
	user = strings.TrimPrefix(user, "system:serviceaccount:kube-system:")
	return strings.TrimPrefix(user, "system:")
}
