// Package certtest makes certificates for tests, of a server at 127.0.0.1.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Pair is a certificate that signs itself, in files.
type Pair struct {
	// Cert and Key are the paths.
	Cert, Key string

	tb     testing.TB
	serial int64
}

// New returns a pair in a directory of the test.
func New(tb testing.TB) *Pair {
	tb.Helper()
	dir := tb.TempDir()
	p := &Pair{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), tb: tb}
	p.Renew()
	return p
}

// Renew writes another certificate with another key.
func (p *Pair) Renew() {
	p.tb.Helper()
	p.serial++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(p.serial), Subject: pkix.Name{CommonName: "snapshot metadata"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		p.tb.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		p.tb.Fatal(err)
	}
	p.write(p.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	p.write(p.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}

func (p *Pair) write(path string, data []byte) {
	if err := os.WriteFile(path, data, 0o600); err != nil {
		p.tb.Fatal(err)
	}
}

// CA returns what clients trust, PEM.
func (p *Pair) CA() []byte {
	p.tb.Helper()
	data, err := os.ReadFile(p.Cert)
	if err != nil {
		p.tb.Fatal(err)
	}
	return data
}
