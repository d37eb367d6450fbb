package kube_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
)

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	data := `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "` + server + `"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigFindsTheServer(t *testing.T) { //nolint:paralleltest // sets the environment
	flagged, fromEnv := kubeconfig(t, "https://flag.test"), kubeconfig(t, "https://env.test")
	cases := map[string]struct {
		reason string
		flags  flagset.Kube
		env    string
		want   string
		token  string
		err    string
	}{
		"Flag":      {reason: "The flag wins.", flags: flagset.Kube{Kubeconfig: flagged}, env: fromEnv, want: "https://flag.test", token: "secret"},
		"Env":       {reason: "The environment is the fallback.", env: fromEnv, want: "https://env.test", token: "secret"},
		"EnvList":   {reason: "The environment may name several files.", env: "/no/such:" + fromEnv, want: "https://env.test", token: "secret"},
		"Master":    {reason: "The address can be overridden.", flags: flagset.Kube{Kubeconfig: flagged, Master: "https://master.test"}, want: "https://master.test", token: "secret"},
		"OnlyHost":  {reason: "An address is enough.", flags: flagset.Kube{Master: "https://master.test"}, want: "https://master.test"},
		"Missing":   {reason: "A file that is not there is named.", flags: flagset.Kube{Kubeconfig: "/no/such"}, err: `"/no/such"`},
		"NoCluster": {reason: "Outside of a pod something must be set.", err: "--kubeconfig"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tc.env)
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			cfg, err := kube.Config(tc.flags, "")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: want an error with %s, got %v", tc.reason, tc.err, err)
				}
				return
			}
			if err != nil || cfg.Host != tc.want || cfg.BearerToken != tc.token {
				t.Errorf("%s: got %+v, %v", tc.reason, cfg, err)
			}
		})
	}
}

func TestConfigSettings(t *testing.T) {
	t.Parallel()
	path := kubeconfig(t, "https://api.test")
	cfg, err := kube.Config(flagset.Kube{Kubeconfig: path, Burst: 10}, "csi-test/v1")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.QPS >= 0 || cfg.UserAgent != "csi-test/v1" || cfg.ContentType != "application/vnd.kubernetes.protobuf" {
		t.Errorf("no throttling, the name, and protobuf: got %v, %q, %q", cfg.QPS, cfg.UserAgent, cfg.ContentType)
	}
	cfg, err = kube.Config(flagset.Kube{Kubeconfig: path, QPS: 2.5, Burst: 7}, "")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.QPS != 2.5 || cfg.Burst != 7 || cfg.UserAgent != rest.DefaultKubernetesUserAgent() {
		t.Errorf("a positive rate throttles: got %v, %d, %q", cfg.QPS, cfg.Burst, cfg.UserAgent)
	}
}
