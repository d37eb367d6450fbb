package hostpathdriver

import (
	"context"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikittest/logtest"
)

// journal is a log that several goroutines write.
type journal struct{ logtest.Log }

// find waits for a line of the log and returns what the pattern's group holds.
func (j *journal) find(ctx context.Context, pattern *regexp.Regexp) string {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if found := pattern.FindStringSubmatch(j.String()); found != nil {
			return found[1]
		}
		<-tick.C
	}
	return ""
}

// keepLog makes the drivers of the machine write to the journal that it
// returns.
func (m *machine) keepLog(options logging.Options) *journal {
	m.t.Helper()
	log := &journal{}
	logger, err := logging.New(options, log)
	m.must(nil, err)
	m.ctx = klog.NewContext(m.ctx, logger)
	return log
}

// TestSecretsStayOut logs everything there is to log, of calls that succeed
// and of calls that fail, and looks for secrets and tokens in the log and on
// disk. Upstream logs both at the level that its manifests set.
func TestSecretsStayOut(t *testing.T) {
	const secret, token, secretToken = "hunter2", "eyJhbGciOi", "eyJ0eXAiOi"
	m := newMachine(t)
	options := logging.NewOptions()
	options.Verbosity = 9
	log := m.keepLog(options)
	p := m.start(m.options(ModeAll, "n1"))

	secrets := map[string]string{"password": secret}
	pod := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "web-0",
		"csi.storage.k8s.io/pod.uid":               "u1",
		"csi.storage.k8s.io/serviceAccount.tokens": `{"aud":{"token":"` + token + `"}}`,
	}
	request := &csi.CreateVolumeRequest{Name: "pvc-1", Secrets: secrets, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}}
	m.must(p.CreateVolume(m.ctx, request))
	request.Name = ""
	if _, err := p.CreateVolume(m.ctx, request); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("create without a name: %v", err)
	}
	inline := &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: m.path("target"), VolumeCapability: mountCapability(), VolumeContext: pod, Secrets: secrets,
	}
	m.must(p.NodePublishVolume(m.ctx, inline))
	inline.Secrets["csi.storage.k8s.io/serviceAccount.tokens"] = `{"aud":{"token":"` + secretToken + `"}}`
	m.must(p.NodePublishVolume(m.ctx, inline))
	record := m.read("state/nodes/n1/uses/csi-1.json")
	pod["size"] = "perhaps"
	if _, err := p.NodePublishVolume(m.ctx, inline); err == nil || strings.Contains(err.Error(), secretToken) {
		t.Errorf("publish with a bad attribute: %v", err)
	}
	delete(pod, "size")
	inline.VolumeId = "../escape"
	if _, err := p.NodePublishVolume(m.ctx, inline); err == nil || strings.Contains(err.Error(), token) {
		t.Errorf("publish with a path as id: %v", err)
	}
	m.must(p.NodeUnpublishVolume(m.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: m.path("target")}))
	p.end()

	for what, text := range map[string]string{"log": log.String(), "record": record} {
		for _, word := range []string{secret, token, secretToken} {
			if strings.Contains(text, word) {
				t.Errorf("the %s has %q:\n%s", what, word, text)
			}
		}
	}
	for _, part := range []string{"/csi.v1.Controller/CreateVolume", "pvc-1", `driver="hostpath.csi.k8s.io"`, `nodeID="n1"`, "Created volume", "Deleted inline volume"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %q:\n%s", part, log.String())
		}
	}
}

// TestIgnoredFlagsAreNamed starts with a flag that has no function here.
func TestIgnoredFlagsAreNamed(t *testing.T) {
	m := newMachine(t)
	log := m.keepLog(logging.NewOptions())
	parsed, err := parse("--automaxprocs", "--ephemeral")
	m.must(nil, err)
	o := m.options(ModeAll, "n1")
	o.ignored = parsed.ignored
	m.start(o).end()
	for _, flag := range []string{"--automaxprocs has no effect", "--ephemeral has no effect"} {
		if !strings.Contains(log.String(), flag) {
			t.Errorf("the log lacks %q:\n%s", flag, log.String())
		}
	}
}

// TestCallLog reads which calls a driver got from its call log, as Kubernetes' CSI mock suite does.
func TestCallLog(t *testing.T) {
	for verbosity, want := range map[int]int{4: 0, 5: 2} {
		t.Run(strconv.Itoa(verbosity), func(t *testing.T) {
			m := newMachine(t)
			options := logging.NewOptions()
			options.Verbosity = verbosity
			m.keepLog(options)
			calls := &journal{}
			o := m.options(ModeAll, "n1")
			o.CallLog = calls
			p := m.start(o)
			request := &csi.CreateVolumeRequest{
				Name: "pvc-1", Parameters: map[string]string{"kind": "none"}, Secrets: map[string]string{"password": "hunter2"}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
			}
			if _, err := p.CreateVolume(m.ctx, request); err == nil {
				t.Error("CreateVolume in a pool that is not there: no error")
			}
			request.Parameters = nil
			m.must(p.CreateVolume(m.ctx, request))
			var got []loggedCall
			for line := range strings.Lines(calls.String()) {
				var call loggedCall
				text, ok := strings.CutPrefix(line, "gRPCCall: ")
				if err := json.Unmarshal([]byte(text), &call); !ok || err != nil {
					t.Fatalf("line %q: %v", line, err)
				}
				if call.Method == csi.Controller_CreateVolume_FullMethodName {
					got = append(got, call)
				}
			}
			if len(got) != want {
				t.Fatalf("%d calls of CreateVolume in the log, want %d:\n%s", len(got), want, calls)
			}
			if want == 0 {
				return
			}
			const asked = `"name":"pvc-1"`
			if failed := got[0]; !strings.Contains(string(failed.Request), asked) || string(failed.Response) != "null" || failed.Error == "" || failed.FullError.Code != codes.InvalidArgument {
				t.Errorf("the call that failed: %+v", failed)
			}
			if made := got[1]; !strings.Contains(string(made.Request), `"secrets":{"password":"***stripped***"}`) || !strings.Contains(string(made.Response), `"volume_id":`) || made.Error != "" || made.FullError != nil {
				t.Errorf("the call that succeeded: %s, %s, %q, %v", made.Request, made.Response, made.Error, made.FullError)
			}
		})
	}
}
