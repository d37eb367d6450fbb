package kube

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// unlimited switches the rate limiter of client-go off.
const unlimited = -1

// Config makes the configuration of a client from the flags: the kubeconfig file of
// the flag, else those of $KUBECONFIG, else the service account of the pod.
// userAgent names this component in the server's audit log; empty: the program's name.
//
// The configuration asks for protobuf. Metrics are added by its Wrap method.
func Config(f flagset.Kube, userAgent string) (*rest.Config, error) {
	cfg, err := load(f, os.Getenv(clientcmd.RecommendedConfigPathEnvVar))
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	if userAgent == "" {
		cfg.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.QPS, cfg.Burst = unlimited, 0
	if f.QPS > 0 {
		cfg.QPS, cfg.Burst = float32(f.QPS), f.Burst
	}
	return cfg, nil
}

// load finds the server and the credentials.
func load(f flagset.Kube, env string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: f.Kubeconfig}
	if f.Kubeconfig == "" && env != "" {
		rules.Precedence = filepath.SplitList(env)
	}
	if f.Master == "" && f.Kubeconfig == "" && len(rules.Precedence) == 0 {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the API server: neither --kubeconfig nor $KUBECONFIG is set, and: %w", err)
		}
		return cfg, nil
	}
	overrides := &clientcmd.ConfigOverrides{}
	overrides.ClusterInfo.Server = f.Master
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig %q: %w", cmp.Or(f.Kubeconfig, env), err)
	}
	return cfg, nil
}
