// Package pki makes the certificates of a development cluster: an authority, one serving certificate for everything that
// listens, one client certificate for each identity, and the key that signs service account tokens. etcd has an authority of its own.
//
// The keys are worth as much as the cluster: they live in its directory, readable by its owner only, and expire.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime of all certificates. An older cluster has to be created again.
const lifetime = 365 * 24 * time.Hour

// Authority signs certificates and keeps them as PEM files in one directory.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// KeyPair is a certificate with its key, as PEM, and the files that hold them.
type KeyPair struct {
	Cert, Key         []byte
	CertFile, KeyFile string
}

// New makes an authority of that name, which writes below dir. Authorities whose certificates one program has need different names.
func New(dir, name string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the certificates: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the authority: %w", err)
	}
	template := newTemplate(pkix.Name{CommonName: name})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of the authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of the authority: %w", err)
	}
	a := &Authority{dir: dir, cert: cert, key: key, pem: encode("CERTIFICATE", der)}
	return a, os.WriteFile(a.File(), a.pem, 0o600)
}

// File is the certificate of the authority.
func (a *Authority) File() string { return filepath.Join(a.dir, "ca.crt") }

// PEM is the certificate of the authority.
func (a *Authority) PEM() []byte { return a.pem }

// Server signs a certificate for a listener on loopback, which may also dial its peers with it. Further DNS names may be
// given.
func (a *Authority) Server(name string, dnsNames ...string) (KeyPair, error) {
	template := newTemplate(pkix.Name{CommonName: name})
	template.DNSNames = append([]string{"localhost"}, dnsNames...)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return a.sign(name, template)
}

// Client signs a certificate for a user of the API server. The API server takes the user's name from the common name and
// the groups from the organizations.
func (a *Authority) Client(file, user string, groups ...string) (KeyPair, error) {
	template := newTemplate(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(file, template)
}

func (a *Authority) sign(file string, template *x509.Certificate) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("make the key of %q: %w", file, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign the certificate of %q: %w", file, err)
	}
	return a.write(file, encode("CERTIFICATE", der), key)
}

// ServiceAccounts makes the key pair that signs and verifies service account tokens; Cert is the public key.
func (a *Authority) ServiceAccounts() (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("make the key of service accounts: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return KeyPair{}, fmt.Errorf("encode the key of service accounts: %w", err)
	}
	return a.write("service-accounts", encode("PUBLIC KEY", der), key)
}

func (a *Authority) write(file string, cert []byte, key *ecdsa.PrivateKey) (KeyPair, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("encode the key of %q: %w", file, err)
	}
	pair := KeyPair{Cert: cert, Key: encode("EC PRIVATE KEY", der), CertFile: filepath.Join(a.dir, file+".crt"), KeyFile: filepath.Join(a.dir, file+".key")}
	if err := os.WriteFile(pair.CertFile, pair.Cert, 0o600); err != nil {
		return KeyPair{}, fmt.Errorf("write the certificate of %q: %w", file, err)
	}
	if err := os.WriteFile(pair.KeyFile, pair.Key, 0o600); err != nil {
		return KeyPair{}, fmt.Errorf("write the key of %q: %w", file, err)
	}
	return pair, nil
}

func newTemplate(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // crypto/rand never fails on Linux
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
