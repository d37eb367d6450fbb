package reconciletest

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// record has the entries since the last command.
type record struct {
	mu      sync.Mutex
	began   time.Time
	entries []*entry
	running []*entry          // calls that have not ended
	last    map[string]string // the last request printed, by method
}

// entry is one API write, CSI call, event or note.
type entry struct {
	at    time.Time
	write *kubetest.Write // an API write or an event
	// A CSI call:
	method    string
	request   proto.Message
	outcome   string
	announced bool // it was printed as running
	note      string
}

// routineCalls are made at every start. They are left out unless they fail.
func routineCalls() map[string]bool {
	return map[string]bool{
		"Probe": true, "GetPluginInfo": true, "GetPluginCapabilities": true,
		"ControllerGetCapabilities": true, "NodeGetCapabilities": true, "GroupControllerGetCapabilities": true,
	}
}

// begin starts the record of a command.
func (r *record) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = time.Now()
}

// write records a request of a client. Writes of Leases are left out, they are heartbeats.
func (r *record) write(w kubetest.Write) {
	if w.Resource == "leases" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, &entry{at: time.Now(), write: &w})
}

// note records a line about the component itself.
func (r *record) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, &entry{at: time.Now(), note: strings.TrimSuffix(text, "\n")})
}

// call records the beginning of a CSI call.
func (r *record) call(method string, request proto.Message) *entry {
	e := &entry{method: method}
	if request != nil {
		e.request = proto.Clone(request)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, e)
	return e
}

// end records the end of a CSI call.
func (r *record) end(e *entry, outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, other := range r.running {
		if other == e {
			r.running = append(r.running[:i:i], r.running[i+1:]...)
			break
		}
	}
	if routineCalls()[e.method] && outcome == "OK" {
		return
	}
	e.at, e.outcome = time.Now(), outcome
	r.entries = append(r.entries, e)
}

// take removes and returns the entries that have ended, and returns the running calls that were not returned before.
func (r *record) take() (entries []*entry, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries, r.entries = r.entries, nil
	for _, e := range r.running {
		if !e.announced && !routineCalls()[e.method] {
			e.announced = true
			entries = append(entries, &entry{at: time.Now(), method: e.method, request: e.request, outcome: "(running)"})
		}
	}
	return entries, r.began
}

// render prints the entries since the last command.
func (r *record) render(cluster *kubetest.Cluster, kinds Kinds) string {
	entries, began := r.take()
	arrange(entries, cluster, kinds)
	var b strings.Builder
	for _, e := range entries {
		head, body := r.print(e)
		if passed := e.at.Sub(began); passed >= time.Second && e.note == "" {
			head = fmt.Sprintf("+%v %s", passed.Round(time.Second/10), head)
		}
		b.WriteString(head + "\n")
		for _, line := range body {
			b.WriteString("    " + line + "\n")
		}
	}
	return b.String()
}

// print returns the headline of an entry and its details.
func (r *record) print(e *entry) (head string, body []string) {
	switch {
	case e.note != "":
		return e.note, nil
	case e.write == nil:
		return r.printCall(e)
	case e.isEvent():
		return printEvent(e.write)
	}
	return printWrite(e.write)
}

// printCall prints a request only when it differs from the last one of that method.
func (r *record) printCall(e *entry) (head string, body []string) {
	text := requestText(e.request)
	if r.last == nil {
		r.last = map[string]string{}
	}
	if r.last[e.method] == text && text != "" {
		return fmt.Sprintf("csi %s (same request) -> %s", e.method, e.outcome), nil
	}
	r.last[e.method] = text
	if text == "" {
		return fmt.Sprintf("csi %s -> %s", e.method, e.outcome), nil
	}
	return fmt.Sprintf("csi %s -> %s", e.method, e.outcome), strings.Split(text, "\n")
}
