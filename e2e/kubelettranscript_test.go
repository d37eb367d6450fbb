package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/e2e/recorder/record"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// others are the reasons of events that are not compared: those of other components, and those about containers.
var others = []string{"Scheduled", "Pulling", "Pulled", "Created", "Started", "Killing", "SuccessfulAttachVolume", "NodeNotReady", "TaintManagerEviction"}

// late is a part of the message of a real kubelet that was faster than the authorizer of nodes.
const late = "no relationship found between node"

// events lists the reasons of the events of a pod, each once.
func (p *play) events(ctx context.Context, pod string) ([]string, error) {
	list, err := p.Client.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,involvedObject.name=" + pod})
	if err != nil {
		return nil, err
	}
	reasons := map[string]bool{}
	for _, e := range list.Items {
		if slices.Contains(others, e.Reason) || !p.node.agent() && strings.Contains(e.Message, late) {
			continue
		}
		reasons[e.Reason] = true
	}
	return slices.Sorted(maps.Keys(reasons)), nil
}

// transcript writes down all steps, the events, which may come late, and what is left.
func (p *play) transcript(ctx context.Context) (string, error) {
	events := step{title: "events", calls: len(p.calls.since(0))}
	for _, pod := range slices.Sorted(maps.Keys(p.uids)) {
		reasons, err := p.events(ctx, pod)
		if err != nil {
			return "", err
		}
		if p.scenario.mayWait {
			reasons = slices.DeleteFunc(reasons, func(r string) bool { return r == "FailedMount" })
		}
		if len(reasons) > 0 {
			events.notes = append(events.notes, fmt.Sprintf("pod %s: %s", pod, strings.Join(reasons, ", ")))
		}
	}
	left, err := p.leftNow(ctx)
	if err != nil {
		return "", err
	}
	steps := append(slices.Clone(p.steps), events, step{title: "left", calls: events.calls, notes: left})
	return p.normal().Replace("# " + p.scenario.about + "\n" + p.text(steps)), nil
}

// grace is how long what is left may take to go, before it counts as left.
const grace = time.Minute

// awaitEnd waits until nothing is left of the volumes, or nothing more goes.
func (p *play) awaitEnd() {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := testbed.Poll(ctx, p.nothingLeft); err != nil {
		p.T.Logf("waiting for nothing to be left: %v", err)
	}
}

func (p *play) nothingLeft(ctx context.Context) (bool, error) {
	left, err := p.leftNow(ctx)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left: %q", left)
	}
	return err == nil, err
}

// leftNow lists paths, mounts and entries of the Node.
func (p *play) leftNow(ctx context.Context) ([]string, error) {
	var is strings.Builder // what belongs to this play
	for _, part := range append(slices.Collect(maps.Values(p.uids)), types.UID(p.Namespace), types.UID(p.driver+"/")) {
		fmt.Fprintf(&is, " -e %s", part)
	}
	out, err := p.node.run(ctx, "sh", "-c", fmt.Sprintf("find %[1]s/pods %[1]s/plugins/kubernetes.io/csi 2>/dev/null | grep -F %[2]s; awk '{print \"mount\", $5}' /proc/self/mountinfo | grep -F %[2]s; :", p.node.root, is.String()))
	if err != nil {
		return nil, err
	}
	node, err := p.Client.CoreV1().Nodes().Get(ctx, p.node.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	left := strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
	for _, name := range node.Status.VolumesInUse {
		if strings.Contains(string(name), p.driver) {
			left = append(left, "volumesInUse "+string(name))
		}
	}
	slices.Sort(left)
	return left, nil
}

// text writes steps, without calls that are repeated: how often a kubelet repeats one is a matter of time.
func (p *play) text(steps []step) string {
	var out strings.Builder
	written := repetitions{kubelet: !p.node.agent(), gone: map[string]bool{}}
	for i, s := range steps {
		fmt.Fprintf(&out, "== %s\n", s.title)
		calls := p.calls.since(s.calls)
		if i+1 < len(steps) {
			calls = calls[:steps[i+1].calls-s.calls]
		}
		nothing := len(s.notes) == 0
		for _, c := range calls {
			if c.Method == registered { // when a kubelet gets to it is a matter of time, too
				continue
			}
			if text := stable(callText(c)); written.add(c, text) {
				fmt.Fprint(&out, text)
				nothing = false
			}
		}
		for _, n := range s.notes {
			fmt.Fprintln(&out, n)
		}
		if nothing {
			fmt.Fprintln(&out, "nothing")
		}
	}
	return out.String()
}

// repetitions knows which calls are repeated.
type repetitions struct {
	// kubelet is true for the real one.
	kubelet bool
	last    string
	// gone has the calls that took something away, without what they found.
	gone map[string]bool
}

// add reports whether a call is no repetition. One that is a repetition is as the last call, or, of the real kubelet, takes away what is away: where it
// has not noted yet that a volume is unmapped, it unmaps the volume once more, and this call finds nothing.
func (r *repetitions) add(c record.Call, text string) bool {
	again := text == r.last
	r.last = text
	switch {
	case c.Method != unpublish && c.Method != unstage:
		clear(r.gone)
	case r.kubelet && c.Code == codes.OK.String():
		c.Paths = nil
		call := callText(c)
		again = r.gone[call]
		r.gone[call] = true
	}
	return !again
}

func TestRepeatedCalls(t *testing.T) {
	call := func(method, volume, found string, code codes.Code) record.Call {
		return record.Call{Method: method, Request: json.RawMessage(`{"volume_id":"` + volume + `"}`), Paths: map[string]string{"volume_id": found}, Code: code.String()}
	}
	published, unpublished := call(publish, "v", "nothing", codes.OK), call(unpublish, "v", "device", codes.OK)
	tests := map[string]struct {
		reason string
		calls  []record.Call
		want   int
		agent  bool
	}{
		"Same":      {"a call that is as the last one is written once", []record.Call{published, published}, 1, false},
		"Found":     {"a call that finds something else is another one", []record.Call{published, call(publish, "v", "device", codes.OK)}, 2, false},
		"Gone":      {"what is away is taken away again", []record.Call{published, unpublished, call(unpublish, "v", "nothing", codes.OK)}, 2, false},
		"Agent":     {"csi-node-agent knows what is away", []record.Call{published, unpublished, call(unpublish, "v", "nothing", codes.OK)}, 3, true},
		"Unstaged":  {"another call came between", []record.Call{unpublished, call(unstage, "v", "directory", codes.OK), call(unpublish, "v", "nothing", codes.OK)}, 2, false},
		"Failed":    {"a call after one that failed is no repetition", []record.Call{call(unpublish, "v", "device", codes.Internal), unpublished}, 2, false},
		"FailsNow":  {"an error is written", []record.Call{unpublished, call(unpublish, "v", "nothing", codes.Internal)}, 2, false},
		"Other":     {"another volume is taken away", []record.Call{unpublished, call(unpublish, "w", "nothing", codes.OK)}, 2, false},
		"Published": {"what was published again can be taken away again", []record.Call{unpublished, published, unpublished}, 3, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := &play{calls: &recording{calls: tc.calls}, node: &kubeletNode{Bed: &testbed.Bed{}}}
			if tc.agent {
				p.node.Dev = &testbed.Dev{}
			}
			if got := p.text([]step{{title: "all"}}); strings.Count(got, "volume_id") != tc.want {
				t.Errorf("%s: got\n%s\nwant %d calls", tc.reason, got, tc.want)
			}
		})
	}
}

// callText writes a call: the method and the code, and a line for each field.
func callText(c record.Call) string {
	var fields map[string]any
	if err := json.Unmarshal(c.Request, &fields); err != nil {
		return fmt.Sprintf("%s %s: %v\n", c.Method, c.Request, err)
	}
	text := fmt.Sprintf("%s: %s\n", c.Method, c.Code)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value, ok := fields[name].(string)
		if !ok {
			line, err := json.Marshal(fields[name])
			value = string(line)
			if err != nil {
				value = err.Error()
			}
		}
		if found := c.Paths[name]; found != "" {
			value += " (" + found + ")"
		}
		text += "  " + name + ": " + value + "\n"
	}
	return text
}

// normal replaces what is another in each play.
func (p *play) normal() *strings.Replacer {
	pairs := []string{p.node.root, "ROOT", p.driver, "DRIVER", p.Namespace, "NAMESPACE", p.node.name, "NODE"}
	for name, uid := range p.uids {
		pairs = append(pairs, string(uid), "UID-OF-"+name)
	}
	return strings.NewReplacer(pairs...)
}

var (
	tokenText  = regexp.MustCompile(`\\"token\\":\\"[^"]*\\"`)
	tokenTime  = regexp.MustCompile(`\\"expirationTimestamp\\":\\"[^"]*\\"`)
	inlineName = regexp.MustCompile(`csi-[0-9a-f]{64}`)
)

// stable replaces what is another in each call.
func stable(text string) string {
	text = tokenText.ReplaceAllString(text, `\"token\":\"TOKEN\"`)
	text = tokenTime.ReplaceAllString(text, `\"expirationTimestamp\":\"TIME\"`)
	return inlineName.ReplaceAllString(text, "INLINE-HANDLE")
}
