// Package certificate makes the TLS configuration of a server from files that others renew, such as cert-manager through a Secret.
package certificate

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"sync"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// Files are the paths of a certificate, with its chain, and of its private key, both PEM.
type Files struct {
	Cert, Key string
}

// Store has the certificate of Files. It reads them with each new connection, which costs less than the handshake: a renewed certificate is
// used from the next connection on. Files that cannot be used, as while they are being written, leave the last certificate in use.
type Store struct {
	files Files
	log   klog.Logger

	mu        sync.Mutex
	cert, key []byte
	current   *tls.Certificate
	problem   string
}

// Load reads the files, which must be valid.
func Load(files Files, log klog.Logger) (*Store, error) {
	s := &Store{files: files, log: log}
	if err := s.read(); err != nil {
		return nil, err
	}
	return s, nil
}

// Get returns the certificate, in the form of tls.Config.GetCertificate.
func (s *Store) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	problem := ""
	if err := s.read(); err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != s.problem {
		s.log.Info("The certificate cannot be renewed, the last one stays in use", logging.KeyReason, problem)
	}
	s.problem = problem
	return s.current, nil
}

// read replaces the certificate if the files have changed.
func (s *Store) read() error {
	cert, err := os.ReadFile(s.files.Cert)
	if err != nil {
		return fmt.Errorf("read the TLS certificate: %w", err)
	}
	key, err := os.ReadFile(s.files.Key)
	if err != nil {
		return fmt.Errorf("read the TLS key: %w", err)
	}
	if bytes.Equal(cert, s.cert) && bytes.Equal(key, s.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("TLS certificate %q with key %q: %w", s.files.Cert, s.files.Key, err)
	}
	if s.current != nil {
		s.log.Info("Using the renewed certificate", logging.KeyPath, s.files.Cert)
	}
	s.cert, s.key, s.current = cert, key, &pair
	return nil
}
