package deploy

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestNetworkPolicy: it selects all pods of the driver, lets in those of the named namespaces, and of others the callers of csi-snapshot-metadata alone.
func TestNetworkPolicy(t *testing.T) {
	values := map[string]any{"networkPolicy": map[string]any{"enabled": true, "metricsNamespaces": []any{}}}
	metadata := map[string]any{"networkPolicy": map[string]any{"enabled": true}, "snapshotMetadata": map[string]any{"enabled": true}}
	tests := map[string]struct {
		reason     string
		manifest   []byte
		namespaces []string
		ports      []string
	}{
		"Component": {"as the README says", render(t, "../testdata/network-policy"), []string{"monitoring"}, nil},
		"Closed":    {"an empty list lets no pod in", manifest(mustTemplate(t, values)), nil, nil},
		"Metadata":  {"backup programs are anywhere", manifest(mustTemplate(t, metadata)), []string{"monitoring"}, []string{"metadata-grpc"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			list := decodeStrictly(t, tc.manifest)
			policy := one[*networkingv1.NetworkPolicy](t, list)
			selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range allWorkloads(list) {
				if !selector.Matches(labels.Set(w.pod.Labels)) {
					t.Errorf("%s: pods of %s are not selected: %v", tc.reason, w.GetName(), w.pod.Labels)
				}
			}
			if !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
				t.Errorf("%s: policy is about %q", tc.reason, policy.Spec.PolicyTypes)
			}
			var namespaces, ports []string
			for _, rule := range policy.Spec.Ingress {
				for _, port := range rule.Ports {
					ports = append(ports, port.Port.StrVal)
				}
				for _, peer := range rule.From {
					for _, e := range peer.NamespaceSelector.MatchExpressions {
						if e.Key == corev1.LabelMetadataName && e.Operator == metav1.LabelSelectorOpIn {
							namespaces = append(namespaces, e.Values...)
						}
					}
				}
				if len(rule.Ports) == 0 && len(rule.From) == 0 {
					t.Errorf("%s: a rule lets all pods in", tc.reason)
				}
			}
			if !slices.Equal(namespaces, tc.namespaces) || !slices.Equal(ports, tc.ports) {
				t.Errorf("%s: namespaces %q and ports %q, want %q and %q", tc.reason, namespaces, ports, tc.namespaces, tc.ports)
			}
		})
	}
}
