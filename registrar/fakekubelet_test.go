package registrar

import (
	"context"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// patience is how long a test waits for what must happen. It only matters
// when the test fails.
const patience = 3 * time.Minute

// running is a registrar that a test has started.
type running struct {
	dir  string
	addr string
	stop func() error
}

// start runs a registrar with short pauses until the test ends.
func start(t *testing.T, change func(*Options)) *running {
	t.Helper()
	r := &running{dir: t.TempDir()}
	o := NewOptions()
	o.PluginRegistrationPath = r.dir
	o.HTTPEndpoint = "127.0.0.1:0"
	o.Retry.Start, o.Retry.Max = 10*time.Millisecond, 50*time.Millisecond
	o.CheckInterval = 10 * time.Millisecond
	o.CSI.Timeout = patience
	listening := make(chan string, 1)
	o.listening = func(addr string) { listening <- addr }
	if change != nil {
		change(&o)
	}
	r.dir = o.PluginRegistrationPath
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	ended := false
	var result error
	r.stop = func() error {
		cancel()
		if !ended {
			result, ended = <-done, true
		}
		return result
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case r.addr = <-listening:
	case err := <-done:
		t.Fatalf("Run ended early: %v", err)
	}
	return r
}

// socket returns the path of a driver's registration socket.
func (r *running) socket(driver string) string { return filepath.Join(r.dir, driver+"-reg.sock") }

// get asks the registrar over HTTP.
func (r *running) get(t *testing.T, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return resp.StatusCode, string(body)
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// kubelet is a connection to a registration socket, as a kubelet makes it.
type kubelet struct {
	registerapi.RegistrationClient

	conn *grpc.ClientConn
	file fs.FileInfo
}

// findSocket waits for a socket at path that is not one of the old ones, and
// connects to it.
func findSocket(t *testing.T, path string, old ...fs.FileInfo) *kubelet {
	t.Helper()
	var file fs.FileInfo
	eventually(t, "a new socket at "+path, func() bool {
		var err error
		file, err = os.Lstat(path)
		if err != nil {
			return false
		}
		for _, o := range old {
			if same(o, file) {
				return false
			}
		}
		return true
	})
	conn, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &kubelet{RegistrationClient: registerapi.NewRegistrationClient(conn), conn: conn, file: file}
}

// same reports whether two files are one. The number of an inode is used again.
func same(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// decide reports the result of the registration to the registrar.
func (k *kubelet) decide(t *testing.T, registered bool, reason string) {
	t.Helper()
	_, err := k.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: registered, Error: reason})
	if err != nil {
		t.Fatalf("NotifyRegistrationStatus(%v): %v", registered, err)
	}
}
