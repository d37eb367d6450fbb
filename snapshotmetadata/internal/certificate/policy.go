package certificate

import (
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Policy restricts the handshake, in the words of the flags. Empty fields mean Go's defaults.
type Policy struct {
	// MinVersion is VersionTLS12 or VersionTLS13.
	MinVersion string
	// CipherSuites are comma-separated names of crypto/tls, of TLS 1.2 and without those that are insecure. TLS 1.3 has fixed suites.
	CipherSuites string
	// Curves are comma-separated names of key exchanges, such as X25519.
	Curves string
}

// Config returns the TLS configuration of a server for HTTP/2 whose certificate is that of the store.
func (p Policy) Config(store *Store) (*tls.Config, error) {
	minVersion, err := p.Version()
	if err != nil {
		return nil, err
	}
	suites, err := p.Suites()
	if err != nil {
		return nil, err
	}
	curves, err := p.CurveIDs()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		GetCertificate: store.Get, MinVersion: max(minVersion, tls.VersionTLS12), CipherSuites: suites, CurvePreferences: curves, NextProtos: []string{"h2"},
	}, nil
}

// Version returns the lowest version; 0: the default.
func (p Policy) Version() (uint16, error) {
	return lookUp(p.MinVersion, map[string]uint16{"": 0, "VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13})
}

// Suites returns the cipher suites; nil: the default.
func (p Policy) Suites() ([]uint16, error) {
	known := map[string]uint16{}
	for _, suite := range tls.CipherSuites() {
		known[suite.Name] = suite.ID
	}
	return lookUpAll(p.CipherSuites, known)
}

// CurveIDs returns the key exchanges; nil: the default.
func (p Policy) CurveIDs() ([]tls.CurveID, error) {
	return lookUpAll(p.Curves, map[string]tls.CurveID{
		"CurveP256": tls.CurveP256, "CurveP384": tls.CurveP384, "CurveP521": tls.CurveP521, "X25519": tls.X25519, "X25519MLKEM768": tls.X25519MLKEM768,
	})
}

func lookUp[T any](name string, known map[string]T) (T, error) {
	value, ok := known[name]
	if !ok {
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(known)), func(name string) bool { return name == "" })
		return value, fmt.Errorf("%q is unknown; known are: %s", name, strings.Join(names, ", "))
	}
	return value, nil
}

func lookUpAll[T any](list string, known map[string]T) (values []T, err error) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		value, err := lookUp(name, known)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}
