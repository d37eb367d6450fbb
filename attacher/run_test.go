package attacher

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/csitest"
)

// journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) has(part string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.text.String(), part)
}

// address returns where HTTP is served, which the system has chosen; nothing before it is.
func (j *journal) address() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := regexp.MustCompile(`"Serving HTTP".* address="([^"]+)"`).FindStringSubmatch(j.text.String()); found != nil {
		return found[1]
	}
	return ""
}

// TestRunWithoutServer runs the whole component beside an API server that is away: it warns, serves and waits,
// and a stop that was asked for is no error. It is ready when its driver is and the first lists have been read.
func TestRunWithoutServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n" +
		"contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := socket(filepath.Join(t.TempDir(), "s"))
	driver := newDriver(csitest.Options{})
	defer s.serve(t, driver)()
	o, err := parse("--csi-address="+string(s), "--kubeconfig="+path, "--http-endpoint=127.0.0.1:0", "--automaxprocs")
	if err != nil {
		t.Fatal(err)
	}
	log := &journal{}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log)))))
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	r := &running{stop: cancel, ended: ended}

	r.eventually(t, "serve HTTP", func() bool { return log.address() != "" })
	r.url = "http://" + log.address()
	r.eventually(t, "find the driver", func() bool { return log.has("CSI driver is ready") })
	if !log.has("--automaxprocs has no effect") {
		t.Error("no warning about a flag without effect")
	}
	r.eventually(t, "report the caches that are not filled", func() bool {
		code, body := r.get(t, "/readyz")
		return code != http.StatusOK && strings.Contains(body, "[+]driver ok") && strings.Contains(body, "[-]informer-sync failed") &&
			strings.Contains(body, "CSINode, PersistentVolume, VolumeAttachment")
	})
	if code, body := r.get(t, "/readyz?exclude=informer-sync"); code != http.StatusOK {
		t.Errorf("with a driver that is ready: %d %s", code, body)
	}
	driver.SetReady(false)
	if code, body := r.get(t, "/readyz"); code == http.StatusOK || !strings.Contains(body, "not ready yet") {
		t.Errorf("with a driver that is not ready: %d %s", code, body)
	}
	if code, body := r.get(t, "/livez"); code != http.StatusOK {
		t.Errorf("a restart would not help: %d %s", code, body)
	}
	r.end(t)
}
