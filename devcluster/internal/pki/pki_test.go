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
	a, err := pki.New(filepath.Join(t.TempDir(), "pki"))
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
	if _, err := pki.New(filepath.Join(file, "pki")); err == nil {
		t.Fatal("no error for a directory below a file")
	}
}
