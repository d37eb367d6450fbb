package snapshotmetadata

import (
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) { return commandtest.Parse(NewOptions, args...) }

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-snapshot-metadata", NewOptions, "--max-streams=0")
}

// TestUpstreamFlags keeps a manifest that was written for the external-snapshot-metadata working.
func TestUpstreamFlags(t *testing.T) {
	o := commandtest.Accepts(t, NewOptions,
		"--csi-address=/csi/csi.sock", "--timeout=30s", "--port=50052", "--max-streaming-duration-min=5", "--tls-cert=/c/tls.crt", "--tls-key=/c/tls.key",
		"--tls-min-version=VersionTLS13", "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
		"--tls-curve-preferences=X25519MLKEM768,CurveP256", "--audience=backup", "--http-endpoint=:8081", "--metrics-path=/m", "--disable-metrics",
		"--kube-api-qps=5", "--kube-api-burst=10", "--kubeconfig=/k", "--v=5", "--logging-format=json",
	)
	if o.CSI.Timeout != 30*time.Second || o.Port != 50052 || o.MaxStreamingMinutes != 5 || o.Audience != "backup" || !o.DisableMetrics || o.HTTP.Endpoint != ":8081" {
		t.Errorf("values did not arrive: %+v", o)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv(EnvTLSCert, "/c/tls.crt")
	t.Setenv(EnvTLSKey, "/c/tls.key")
	if o := NewOptions(); o.TLSCert != "/c/tls.crt" || o.TLSKey != "/c/tls.key" {
		t.Errorf("the environment did not arrive: %+v", o)
	}
}

func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"csi-address": "/run/csi/socket", "timeout": "1m0s", "port": "50051", "max-streaming-duration-min": "10", "tls-cert": "", "tls-key": "",
		"tls-min-version": "", "tls-cipher-suites": "", "tls-curve-preferences": "", "audience": "", "http-endpoint": ":8080", "metrics-path": "/metrics",
		"disable-metrics": "false", "kube-api-burst": "10", "kubeconfig": "", "version": "false", "v": "0", "vmodule": "",
		// The one deliberate difference: the server, not the client, limits the rate of requests.
		"kube-api-qps": "0",
		// Only here.
		"max-streams": "200", "max-streams-per-user": "50", "kube-api-timeout": "30s", "secret-namespaces": "", "exit-on-connection-loss": "false", "enable-pprof": "false",
	})
}

func TestValidate(t *testing.T) {
	cert := []string{"--tls-cert=/c", "--tls-key=/k"}
	with := func(args ...string) []string { return append(args, cert...) }
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"NoCertificate": {Reason: "tokens must not be sent in the clear", Errors: []string{"--tls-cert=: must be the path of a certificate, or $TLS_CERT_PATH", "--tls-key=: must be"}},
		"Certificate":   {Reason: "everything else has a default", Args: cert},
		"Everything": {
			Reason: "all that is wrong is reported at once, by flag and rule",
			Args:   with("--kube-api-timeout=0", "--timeout=0", "--csi-address=", "--port=-1", "--max-streaming-duration-min=0", "--max-streams=0", "--max-streams-per-user=0"),
			Errors: []string{
				"--kube-api-timeout=0", "--timeout=0s", "--csi-address", "--port=-1: must be from 0 to 65535", "--max-streaming-duration-min=0: must be from 1 to 1440",
				"--max-streams=0: must be at least 1", "--max-streams-per-user=0: must be at least 1",
			},
		},
		"Policy": {
			Reason: "a misspelt name would have no effect",
			Args:   with("--tls-min-version=1.2", "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA", "--tls-curve-preferences=x25519"),
			Errors: []string{`--tls-min-version="1.2" is unknown; known are: VersionTLS12, VersionTLS13`, `--tls-cipher-suites="TLS_RSA_WITH_RC4_128_SHA"`, `--tls-curve-preferences="x25519" is unknown; known are: CurveP256`},
		},
		"Deprecated":  {Reason: "what is deprecated is mentioned", Args: with("--http-endpoint=", "--metrics-address=:1"), Warnings: []string{"--metrics-address"}},
		"UnknownFlag": {Reason: "a misspelt flag would have no effect", Args: []string{"--no-such-flag"}, Usage: []string{"-no-such-flag"}},
	})
}
