package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/devcluster/internal/pki"
)

func newAuthority(t *testing.T) (*pki.Authority, *x509.CertPool) {
	t.Helper()
	a, err := pki.New(filepath.Join(t.TempDir(), "pki"), "devcluster")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.PEM()) {
		t.Fatal("the authority's PEM holds no certificate")
	}
	return a, pool
}

func parse(t *testing.T, pair pki.KeyPair) *x509.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatalf("certificate and key do not fit: %v", err)
	}
	return c.Leaf
}

func TestServerCertificateIsForLoopbackOnly(t *testing.T) {
	a, pool := newAuthority(t)
	pair, err := a.Server("kube-apiserver", "kubernetes.default.svc")
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, pair)
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "kubernetes.default.svc"} {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: name, Roots: pool}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := cert.Verify(x509.VerifyOptions{DNSName: "example.com", Roots: pool}); err == nil {
		t.Error("the certificate is good for example.com")
	}
}

func TestClientCertificateCarriesUserAndGroups(t *testing.T) {
	a, pool := newAuthority(t)
	pair, err := a.Client("node-1", "system:node:node-1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, pair)
	if cert.Subject.CommonName != "system:node:node-1" {
		t.Errorf("common name %q", cert.Subject.CommonName)
	}
	if diff := cmp.Diff([]string{"system:nodes"}, cert.Subject.Organization); diff != "" {
		t.Error(diff)
	}
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: usage}); err != nil {
		t.Error(err)
	}
}

func TestKeysAreReadableByTheOwnerOnly(t *testing.T) {
	a, _ := newAuthority(t)
	pair, err := a.ServiceAccounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pair.CertFile, pair.KeyFile, a.File()} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

func TestUnwritableDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.New(filepath.Join(file, "pki"), "devcluster"); err == nil {
		t.Fatal("no error for a directory below a file")
	}
}

func TestAuthoritiesDoNotTrustEachOther(t *testing.T) {
	ours, pool := newAuthority(t)
	theirs, _ := newAuthority(t)
	for name, tc := range map[string]struct {
		authority *pki.Authority
		trusted   bool
	}{"Ours": {ours, true}, "Theirs": {theirs, false}} {
		pair, err := tc.authority.Server("s")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(t, pair).Verify(x509.VerifyOptions{DNSName: "localhost", Roots: pool}); (err == nil) != tc.trusted {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClientCertificateIsNoServerCertificate(t *testing.T) {
	a, pool := newAuthority(t)
	pair, err := a.Client("c", "somebody")
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, pair)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
		t.Error("a user can play the API server")
	}
	if cert.IsCA {
		t.Error("a user can make users")
	}
}

func TestSerialNumbersDiffer(t *testing.T) {
	a, _ := newAuthority(t)
	seen := map[string]bool{}
	for _, name := range []string{"a", "b", "c"} {
		pair, err := a.Client(name, name)
		if err != nil {
			t.Fatal(err)
		}
		serial := parse(t, pair).SerialNumber.String()
		if seen[serial] {
			t.Errorf("serial %s twice", serial)
		}
		seen[serial] = true
	}
}

func TestFilesHoldWhatIsReturned(t *testing.T) {
	a, _ := newAuthority(t)
	pair, err := a.ServiceAccounts()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]byte{pair.CertFile: pair.Cert, pair.KeyFile: pair.Key, a.File(): a.PEM()} {
		if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.RemoveAll(filepath.Dir(a.File())); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Client("late", "somebody"); err == nil {
		t.Error("no error though the directory is gone")
	}
}
