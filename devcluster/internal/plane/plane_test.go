package plane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
	"github.com/longshore-csi/longshore/devcluster/internal/pki"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

func newPlane(t *testing.T) *Plane {
	t.Helper()
	p, err := New(layout.Dir(filepath.Join(t.TempDir(), "c")), build.Binaries{Dir: "/bin-dir", Version: "v1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func specs(p *Plane) []proc.Spec {
	return []proc.Spec{p.EtcdSpec(), p.APIServerSpec(), p.ControllerManagerSpec(), p.SchedulerSpec()}
}

func TestEveryProcessHasItsProgramLogAndProbe(t *testing.T) {
	p := newPlane(t)
	var names []string
	for _, spec := range specs(p) {
		names = append(names, spec.Name)
		if spec.Path != "/bin-dir/"+spec.Name || spec.Log != p.dir.Log(spec.Name) || spec.Ready == nil || spec.Grace != grace {
			t.Errorf("got %+v", spec)
		}
	}
	if want := []string{Etcd, APIServer, ControllerManager, Scheduler}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

func TestEverythingListensOnLoopback(t *testing.T) {
	p := newPlane(t)
	for _, spec := range specs(p) {
		listens := 0
		for _, arg := range spec.Args {
			if strings.HasPrefix(arg, "--bind-address=") || strings.HasPrefix(arg, "--listen-") {
				listens++
				if !strings.Contains(arg, "127.0.0.1") {
					t.Errorf("%s listens beyond loopback: %s", spec.Name, arg)
				}
			}
		}
		if listens == 0 {
			t.Errorf("%s is not told where to listen: that would be everywhere", spec.Name)
		}
	}
	if !strings.HasPrefix(p.Server(), "https://127.0.0.1:") {
		t.Errorf("server %s", p.Server())
	}
}

func TestFilesThatFlagsNameAreThereAndPrivate(t *testing.T) {
	p := newPlane(t)
	if err := p.Audit(); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, spec := range specs(p) {
		for _, arg := range spec.Args {
			_, path, _ := strings.Cut(arg, "=")
			if !strings.HasPrefix(path, string(p.dir)) || path == p.dir.Etcd() || path == p.dir.Log("audit") {
				continue
			}
			checked++
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s %s: %v, %v", spec.Name, arg, info, err)
			}
		}
	}
	if checked < 15 {
		t.Errorf("only %d files: the test looks at the wrong flags", checked)
	}
}

// A certificate for the API server opens nothing in etcd: there is no RBAC behind that door.
func TestEtcdTrustsNoUserOfTheAPIServer(t *testing.T) {
	p := newPlane(t)
	ca, err := os.ReadFile(p.etcdCA.File())
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	for _, arg := range p.EtcdSpec().Args {
		if strings.Contains(arg, "trusted-ca-file=") && !strings.HasSuffix(arg, "="+p.etcdCA.File()) {
			t.Errorf("etcd trusts another authority: %s", arg)
		}
	}
	user, err := p.ca.Client("node", "system:node:a", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string]pki.KeyPair{"user": user, "serving": p.serving, "etcd": p.etcd} {
		cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: trusted, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if (err == nil) != (name == "etcd") {
			t.Errorf("etcd on the certificate of %s: %v", name, err)
		}
	}
}

func TestPortsDiffer(t *testing.T) {
	p := newPlane(t)
	seen := map[int]string{}
	for name, reserved := range p.ports {
		port := reserved.number
		if other, ok := seen[port]; ok || port <= 0 {
			t.Errorf("%s and %q have port %d", name, other, port)
		}
		seen[port] = name
	}
	if len(seen) != 5 {
		t.Errorf("ports %v", p.ports)
	}
}

func TestAuditIsAskedFor(t *testing.T) {
	p := newPlane(t)
	if args := strings.Join(p.APIServerSpec().Args, " "); strings.Contains(args, "audit") {
		t.Errorf("audit without being asked: %s", args)
	}
	if err := p.Audit(); err != nil {
		t.Fatal(err)
	}
	if args := strings.Join(p.APIServerSpec().Args, " "); !strings.Contains(args, "--audit-log-path="+p.dir.Log("audit")) {
		t.Errorf("no audit: %s", args)
	}
}

func TestFeatureGates(t *testing.T) {
	p := newPlane(t)
	const flag = "--feature-gates="
	for _, gates := range []string{"", "A=true,B=false"} {
		p.SetFeatureGates(gates)
		for _, spec := range []proc.Spec{p.APIServerSpec(), p.ControllerManagerSpec(), p.SchedulerSpec()} {
			if args := strings.Join(spec.Args, " "); strings.Contains(args, flag) != (gates != "") || !strings.Contains(args, gates) {
				t.Errorf("%s with the gates %q: %s", spec.Name, gates, args)
			}
		}
	}
}

func TestAuditTellsReadsOfReadersOnly(t *testing.T) {
	p := newPlane(t)
	for name, tc := range map[string]struct {
		reason  string
		readers []string
		want    int
	}{
		"Nobody": {reason: "a log of all reads is large", want: 0},
		"Two":    {reason: "each has a rule", readers: []string{"a:b", "c"}, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			if err := p.Audit(tc.readers...); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(p.dir.Config("audit.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(string(data), "watch"); got != tc.want {
				t.Errorf("%s: got %d rules about reads, want %d:\n%s", tc.reason, got, tc.want, data)
			}
			for _, user := range tc.readers {
				if !strings.Contains(string(data), fmt.Sprintf("users: [%q]", user)) {
					t.Errorf("%s: %s is missing:\n%s", tc.reason, user, data)
				}
			}
		})
	}
}

func TestUserGetsAKubeconfig(t *testing.T) {
	p := newPlane(t)
	path, err := p.User("n", "system:node:n", "system:nodes")
	if err != nil || path != p.dir.UserKubeconfig("n") {
		t.Fatalf("%q, %v", path, err)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || current.AuthInfo != "system:node:n" || config.Clusters[current.Cluster].Server != p.Server() {
		t.Errorf("got %+v", config)
	}
	if info := config.AuthInfos["system:node:n"]; info == nil || len(info.ClientCertificateData) == 0 || len(info.ClientKeyData) == 0 {
		t.Errorf("no certificate in %+v", info)
	}
}

func TestReadinessTakesOnlyOK(t *testing.T) {
	code := http.StatusServiceUnavailable
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	p := &Plane{http: server.Client()}
	ready := p.answers(server.URL + "/readyz")
	if err := ready(t.Context()); err == nil || !strings.Contains(err.Error(), "/readyz answers 503") {
		t.Errorf("503: got %v", err)
	}
	code = http.StatusOK
	if err := ready(t.Context()); err != nil {
		t.Errorf("200: got %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ready(ended); err == nil {
		t.Error("no error though the caller has gone")
	}
	server.Close()
	if err := ready(t.Context()); err == nil {
		t.Error("no error though nobody listens")
	}
	if err := p.answers("://")(t.Context()); err == nil {
		t.Error("no error for what is no URL")
	}
}

func TestProbeTrustsOnlyItsOwnAuthority(t *testing.T) {
	stranger := httptest.NewTLSServer(http.NotFoundHandler())
	defer stranger.Close()
	if err := newPlane(t).answers(stranger.URL)(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}
}

func TestUnwritableDirectoryIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(layout.Dir(filepath.Join(file, "c")), build.Binaries{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
	p := newPlane(t)
	p.dir = layout.Dir(file)
	if err := p.Audit(); err == nil || !strings.Contains(err.Error(), "audit policy") {
		t.Errorf("got %v", err)
	}
	if _, err := p.User("u", "somebody"); err == nil || !strings.Contains(err.Error(), `"somebody"`) {
		t.Errorf("got %v", err)
	}
}
