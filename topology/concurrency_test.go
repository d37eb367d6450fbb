package topology

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// TestConcurrentUse has the events of nodes, requests and their encoding run
// at the same time; the race detector judges. Each goroutine owns some nodes,
// so the end state is known.
func TestConcurrentUse(t *testing.T) {
	const writers, rounds = 4, 100
	x := New(testDriver)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() { churn(x, w, rounds) })
		group.Go(func() { questions(t, x, rounds) })
	}
	group.Wait()
	want := map[string]bool{}
	for w := range writers {
		want[fmt.Sprintf("zone=%d", w%2)] = true
	}
	for _, s := range x.Segments() {
		if !want[s.String()] {
			t.Errorf("segment %q remains", s)
		}
		delete(want, s.String())
	}
	if len(want) > 0 {
		t.Errorf("segments %v are missing", want)
	}
}

// churn lets the node of one writer come and go; at last it is there.
func churn(x *Index, writer, rounds int) {
	name := fmt.Sprintf("n%d", writer)
	for i := range rounds {
		x.SetNode(name, map[string]string{"zone": fmt.Sprint(i % 5), "rack": fmt.Sprint(writer)})
		x.SetCSINode(name, true, []string{"zone"})
		x.SetCSINode(name, true, []string{"zone", "rack"})
		x.DeleteNode(name)
		x.DeleteCSINode(name)
	}
	x.SetCSINode(name, true, []string{"zone"})
	x.SetNode(name, map[string]string{"zone": fmt.Sprint(writer % 2)})
}

// questions asks everything there is to ask, and encodes the shared messages
// as a gRPC client would.
func questions(t *testing.T, x *Index, rounds int) {
	t.Helper()
	for i := range rounds {
		request := Request{Policy: DefaultPolicy(), ClaimName: fmt.Sprintf("data-web-%d", i)}
		if i%2 == 0 {
			request.SelectedNode = fmt.Sprintf("n%d", i%4)
		}
		requirement, err := x.Require(request)
		if err != nil {
			if !errors.Is(err, ErrNodeNotFound) && !errors.Is(err, ErrNoTopology) {
				t.Errorf("request %+v: %v", request, err)
			}
			continue
		}
		encoded, err := proto.Marshal(requirement)
		if err != nil {
			t.Error(err)
		}
		var decoded csi.TopologyRequirement
		if err := proto.Unmarshal(encoded, &decoded); err != nil || !proto.Equal(requirement, &decoded) {
			t.Errorf("encoding changes the requirement: %v, %v", &decoded, err)
		}
		x.State()
		x.Segments()
	}
}
