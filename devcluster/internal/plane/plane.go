// Package plane says how etcd and the Kubernetes control plane are run: certificates, kubeconfigs, flags and readiness.
//
// Everything listens on loopback only, on ports that are reserved for it, with TLS and client certificates. There is no cloud provider, no
// network plugin and no leader election: one process of each.
package plane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
	"github.com/longshore-csi/longshore/devcluster/internal/pki"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// Names of the processes.
const (
	Etcd              = build.Etcd
	APIServer         = build.APIServer
	ControllerManager = build.ControllerManager
	Scheduler         = build.Scheduler
)

// grace is short: the API server would wait for its watchers, which are being stopped too.
const grace = 2 * time.Second

const issuer = "https://kubernetes.default.svc.cluster.local"

// Plane is a control plane that can be started. Close it when its processes have ended.
type Plane struct {
	dir      layout.Dir
	bin      build.Binaries
	ca       *pki.Authority
	serving  pki.KeyPair
	accounts pki.KeyPair
	// etcdCA signs what etcd and its one client, the API server, have: a certificate of it permits everything in etcd, so that it signs none
	// of a user of the API server.
	etcdCA *pki.Authority
	etcd   pki.KeyPair
	ports  map[string]reservedPort
	http   *http.Client
	audit  bool
	// gates is the flag of the feature gates, if any.
	gates []string
	// controllers is the flag of kube-controller-manager for the controllers that run, if not all do.
	controllers []string
}

// New makes the certificates, reserves the ports and writes the kubeconfigs of the administrator and of the control plane's
// own processes. A port is reserved for each of the others too, see Address.
func New(dir layout.Dir, bin build.Binaries, others ...string) (*Plane, error) {
	ca, err := pki.New(dir.PKI(), "devcluster")
	if err != nil {
		return nil, err
	}
	etcdCA, err := pki.New(filepath.Join(dir.PKI(), "etcd"), "devcluster-etcd")
	if err != nil {
		return nil, err
	}
	p := &Plane{dir: dir, bin: bin, ca: ca, etcdCA: etcdCA}
	if p.etcd, err = etcdCA.Server("etcd"); err != nil {
		return nil, err
	}
	if p.serving, err = ca.Server("devcluster", "kubernetes", "kubernetes.default", "kubernetes.default.svc"); err != nil {
		return nil, err
	}
	if p.accounts, err = ca.ServiceAccounts(); err != nil {
		return nil, err
	}
	if p.http, err = p.client(); err != nil {
		return nil, err
	}
	if p.ports, err = reservePorts(append([]string{Etcd, "etcd-peer", APIServer, ControllerManager, Scheduler}, others...)...); err != nil {
		return nil, err
	}
	if err := p.writeOwnKubeconfigs(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close gives the ports back.
func (p *Plane) Close() error { return closePorts(p.ports) }

func (p *Plane) writeOwnKubeconfigs() error {
	for _, dir := range []string{filepath.Dir(p.dir.UserKubeconfig("x")), filepath.Dir(p.dir.Config("x")), p.dir.Logs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the directories of the cluster: %w", err)
		}
	}
	if err := p.writeKubeconfig(p.dir.Kubeconfig(), "devcluster-admin", "system:masters"); err != nil {
		return err
	}
	for name, user := range map[string]string{ControllerManager: "system:kube-controller-manager", Scheduler: "system:kube-scheduler"} {
		if _, err := p.User(name, user); err != nil {
			return err
		}
	}
	config := fmt.Sprintf(schedulerConfig, p.dir.UserKubeconfig(Scheduler))
	if err := os.WriteFile(p.dir.Config("scheduler.yaml"), []byte(config), 0o600); err != nil {
		return fmt.Errorf("write the configuration of the scheduler: %w", err)
	}
	return nil
}

// The scheduler takes its client limits from this file alone. They are high: a development cluster measures the storage
// stack, not the limits of its clients.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: %q
  qps: 1000
  burst: 2000
leaderElection:
  leaderElect: false
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
`

// auditPolicy logs who did what, when it is done (a watch: also when it begins), without the objects: all writes, and what
// the readers read.
func auditPolicy(readers []string) string {
	var reads strings.Builder
	for _, user := range readers {
		fmt.Fprintf(&reads, "- {level: Metadata, users: [%q], verbs: [get, list, watch]}\n", user)
	}
	return `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, verbs: [create, update, patch, delete]}
` + reads.String() + `- {level: None}
`
}

// SetFeatureGates sets the feature gates of the API server, the controllers and the scheduler. Call it before their specs.
func (p *Plane) SetFeatureGates(gates string) {
	p.gates = nil
	if gates != "" {
		p.gates = []string{"--feature-gates=" + gates}
	}
}

// SetSelfAttach has kube-controller-manager run without the attach/detach controller. Call it before its spec.
func (p *Plane) SetSelfAttach(on bool) {
	p.controllers = nil
	if on {
		p.controllers = []string{"--controllers=*,-persistentvolume-attach-detach-controller"}
	}
}

// Audit makes the API server log every write, and also what the given users read. Call it before APIServerSpec.
func (p *Plane) Audit(readers ...string) error {
	p.audit = true
	if err := os.WriteFile(p.dir.Config("audit.yaml"), []byte(auditPolicy(readers)), 0o600); err != nil {
		return fmt.Errorf("write the audit policy: %w", err)
	}
	return nil
}

// User makes a client certificate and a kubeconfig for a user of the API server and returns the path of the kubeconfig.
func (p *Plane) User(file, user string, groups ...string) (string, error) {
	path := p.dir.UserKubeconfig(file)
	return path, p.writeKubeconfig(path, user, groups...)
}

// Server is the URL of the API server.
func (p *Plane) Server() string { return "https://" + p.Address(APIServer) }

// Address is the host and port that are reserved for a process of the control plane, or for one that was named to New.
func (p *Plane) Address(name string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.ports[name].number))
}

func (p *Plane) writeKubeconfig(path, user string, groups ...string) error {
	pair, err := p.ca.Client(filepath.Base(path), user, groups...)
	if err != nil {
		return err
	}
	const name = "devcluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: p.Server(), CertificateAuthorityData: p.ca.PEM()}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write the kubeconfig of %q: %w", user, err)
	}
	return nil
}

// client makes an HTTP client for the readiness checks, with the certificate of an administrator and that of etcd: each server names the authority whose
// certificates it takes.
func (p *Plane) client() (*http.Client, error) {
	admin, err := p.ca.Client("devcluster-probe", "devcluster-probe", "system:masters")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.ca.PEM())
	roots.AppendCertsFromPEM(p.etcdCA.PEM())
	var certs []tls.Certificate
	for _, pair := range []pki.KeyPair{admin, p.etcd} {
		cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			return nil, fmt.Errorf("read the certificates of the readiness checks: %w", err)
		}
		certs = append(certs, cert)
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: certs, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}
	return &http.Client{Transport: transport, Timeout: 5 * time.Second}, nil
}

func (p *Plane) spec(name string, ready string, args ...string) proc.Spec {
	return proc.Spec{Name: name, Path: p.bin.Path(name), Args: args, Log: p.dir.Log(name), Ready: p.answers("https://" + p.Address(name) + ready), Grace: grace}
}

// answers makes a readiness check: the URL is asked and must say 200.
func (p *Plane) answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := p.http.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, resp.Status)
		}
		return nil
	}
}
