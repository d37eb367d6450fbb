package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/devcluster/apply"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	nodePolicyFiles = "../deploy/components/node-policy/"
	nodeRights      = "../deploy/components/distributed/rbac.yaml"
	nodeAccount     = "csi-hostpath-node"
)

// nodePolicyScene has an account with the rights that pods on nodes have in deploy/overlays/distributed, bounded by the policy of deploy/, and the names of two nodes. In
// a cluster with that overlay, its own account, rights and policy are not touched.
type nodePolicyScene struct {
	*scene
	nodes []string
}

func newNodePolicyScene(t *testing.T) *nodePolicyScene {
	s := &nodePolicyScene{scene: newScene(t)}
	nodes := s.driverNodes()
	if len(nodes) < 2 {
		t.Skip("needs two nodes with the driver")
	}
	s.nodes = nodes[:2]
	writer := bed.NewWriter(t)
	account := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": nodeAccount, "namespace": s.Namespace},
	}}
	policy := testbed.ReadManifest(t, nodePolicyFiles+"policy.yaml")[0]
	binding := testbed.ReadManifest(t, nodePolicyFiles+"binding.yaml")[0]
	conditions := []any{map[string]any{"name": "account", "expression": "request.userInfo.username == 'system:serviceaccount:" + s.Namespace + ":" + nodeAccount + "'"}}
	fields := []error{
		unstructured.SetNestedSlice(policy.Object, conditions, "spec", "matchConditions"),
		unstructured.SetNestedField(binding.Object, s.Namespace, "spec", "policyName"),
	}
	objects := []*unstructured.Unstructured{account, policy, binding}
	policy.SetName(s.Namespace)
	binding.SetName(s.Namespace)
	for _, o := range testbed.ReadManifest(t, nodeRights) {
		// The Role of the Leases is of the scene's namespace.
		if name := s.Namespace + "-" + o.GetName(); !strings.HasSuffix(o.GetKind(), "Binding") {
			o.SetName(name)
		} else {
			o.SetName(name)
			role, _, err := unstructured.NestedString(o.Object, "roleRef", "name")
			subject := map[string]any{"kind": "ServiceAccount", "name": nodeAccount, "namespace": s.Namespace}
			fields = append(fields, err, unstructured.SetNestedField(o.Object, s.Namespace+"-"+role, "roleRef", "name"),
				unstructured.SetNestedSlice(o.Object, []any{subject}, "subjects"))
		}
		if !strings.HasPrefix(o.GetKind(), "Cluster") {
			o.SetNamespace(s.Namespace)
		}
		objects = append(objects, o)
	}
	for _, err := range fields {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.apply(writer, objects)
	return s
}

// apply writes objects, of which those outside of the namespace are removed when the test ends.
func (s *nodePolicyScene) apply(writer *apply.Client, objects []*unstructured.Unstructured) {
	s.T.Cleanup(func() {
		for _, o := range slices.Backward(objects) {
			err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
				err := writer.Delete(ctx, o)
				return err == nil, err
			})
			if err != nil {
				s.T.Errorf("remove %s: %v", apply.Name(o), err)
			}
		}
	})
	for _, o := range objects {
		s.Retry("apply "+apply.Name(o), func(ctx context.Context) error { return writer.Apply(ctx, o) })
	}
}

// on returns a client with the token that a pod of the account has on a node.
func (s *nodePolicyScene) on(node string) kubernetes.Interface {
	s.T.Helper()
	pod := bare()
	pod.Namespace, pod.Name = s.Namespace, "on-"+node
	pod.Spec.ServiceAccountName, pod.Spec.NodeName, pod.Spec.NodeSelector = nodeAccount, node, nil
	s.AddPod(pod)
	var token string
	s.Retry("request the token of a pod on "+node, func(ctx context.Context) error {
		made, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		request, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(ctx, nodeAccount, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: made.Name, UID: made.UID}},
		}, metav1.CreateOptions{})
		if err == nil {
			token = request.Status.Token
		}
		return err
	})
	return s.withToken(token)
}

func (s *nodePolicyScene) withToken(token string) kubernetes.Interface {
	s.T.Helper()
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.T.Fatal(err)
	}
	return client
}

// volumeOn makes a PersistentVolume of the driver with the affinity of a node.
func (s *nodePolicyScene) volumeOn(name, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              s.Namespace,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "hostpath.csi.k8s.io", VolumeHandle: s.Namespace + name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: topologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}

// refusedBy reports whether a request was refused with a text. Any other answer is returned as an error.
func refusedBy(text string, err error) (bool, error) {
	switch {
	case err == nil:
		return false, errors.New("the request was allowed")
	case !strings.Contains(err.Error(), text):
		return false, err
	}
	return true, nil
}

// wantRefused checks that the policy, and no lack of a right, refuses a request.
func (s *nodePolicyScene) wantRefused(what, why string, err error) {
	s.T.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "'"+s.Namespace+"'") || !strings.Contains(err.Error(), why) {
		s.T.Errorf("%s: got %v, want policy %s to refuse it: %s", what, err, s.Namespace, why)
	}
}

func (s *nodePolicyScene) wantAllowed(what string, err error) {
	s.T.Helper()
	if err != nil {
		s.T.Errorf("%s: %v", what, err)
	}
}

// TestRootOnOneNode: the token of a node's pods reads no Secret, and writes no PersistentVolume of another node or driver; and the
// sidecars there write what they need.
func TestRootOnOneNode(t *testing.T) {
	s := newNodePolicyScene(t)
	here, there := s.nodes[0], s.nodes[1]
	root, ctx := s.on(here), t.Context()
	volumes := root.CoreV1().PersistentVolumes()
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	s.Wait("the rights, and the policy to be in force", func(ctx context.Context) (bool, error) {
		_, err := volumes.Create(ctx, s.volumeOn("probe", there), dry)
		return refusedBy("'"+s.Namespace+"'", err)
	})
	const otherNode = "whose node affinity is to its own node"

	for _, namespace := range []string{s.Namespace, metav1.NamespaceSystem} {
		if _, err := root.CoreV1().Secrets(namespace).Get(ctx, "any", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a secret of %s: %v", namespace, err)
		}
	}
	if _, err := root.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("all secrets: %v", err)
	}

	theirs := s.volumeOn("theirs", there)
	t.Cleanup(func() {
		_ = s.Client.CoreV1().PersistentVolumes().Delete(context.Background(), theirs.Name, metav1.DeleteOptions{})
	})
	s.Retry("create a volume of the other node", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, theirs, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	finalizer := []byte(`{"metadata": {"finalizers": ["example.com/e2e"]}}`)
	_, err := volumes.Create(ctx, s.volumeOn("new", there), dry)
	s.wantRefused("create a volume of the other node", otherNode, err)
	_, err = volumes.Patch(ctx, theirs.Name, types.MergePatchType, finalizer, metav1.PatchOptions{})
	s.wantRefused("patch it", otherNode, err)
	s.wantRefused("delete it", otherNode, volumes.Delete(ctx, theirs.Name, metav1.DeleteOptions{}))
	foreign := s.volumeOn("foreign", here)
	foreign.Spec.CSI.Driver = "foreign.example.com"
	_, err = volumes.Create(ctx, foreign, dry)
	s.wantRefused("create a volume of another driver", "only PersistentVolumes of its driver", err)
	nowhere := s.volumeOn("nowhere", here)
	nowhere.Spec.NodeAffinity = nil
	_, err = volumes.Create(ctx, nowhere, dry)
	s.wantRefused("create a volume of all nodes", otherNode, err)

	mine := s.volumeOn("mine", here)
	t.Cleanup(func() {
		_ = s.Client.CoreV1().PersistentVolumes().Delete(context.Background(), mine.Name, metav1.DeleteOptions{})
	})
	_, err = volumes.Create(ctx, mine, metav1.CreateOptions{})
	s.wantAllowed("create a volume of the node", err)
	_, err = volumes.Patch(ctx, mine.Name, types.MergePatchType, finalizer, metav1.PatchOptions{})
	s.wantAllowed("patch it", err)
	_, err = volumes.Patch(ctx, mine.Name, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
	s.wantAllowed("patch it again", err)
	s.wantAllowed("delete it", volumes.Delete(ctx, mine.Name, metav1.DeleteOptions{}))
}

// TestNodeAccountOnClaims: a node takes claims of its driver, protects their sources, and changes nothing else of any claim.
func TestNodeAccountOnClaims(t *testing.T) {
	s := newNodePolicyScene(t)
	here, there := s.nodes[0], s.nodes[1]
	root := s.on(here)
	s.AddClass(testbed.Class(s.Namespace, "hostpath.csi.k8s.io", storagev1.VolumeBindingWaitForFirstConsumer))
	claim := testbed.Claim(s.Namespace, "data", s.Namespace)
	claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": "hostpath.csi.k8s.io"}
	s.AddClaim(claim)
	update := func(ctx context.Context, change func(c *corev1.PersistentVolumeClaim)) error {
		c, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(c)
		_, err = root.CoreV1().PersistentVolumeClaims(s.Namespace).Update(ctx, c, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	selectNode := func(node string) func(c *corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Annotations[selectedNode] = node }
	}
	s.Wait("the rights, and the policy to be in force", func(ctx context.Context) (bool, error) {
		return refusedBy("'"+s.Namespace+"'", update(ctx, selectNode(there)))
	})
	protect := func(c *corev1.PersistentVolumeClaim) {
		c.Finalizers = append(c.Finalizers, "provisioner.storage.kubernetes.io/cloning-protection")
	}
	for name, tc := range map[string]struct {
		change func(c *corev1.PersistentVolumeClaim)
		want   string
	}{
		"Take":             {selectNode(here), ""},
		"Protect":          {protect, ""},
		"SelectForAnother": {selectNode(there), "selects no node for claims but its own"},
		"Label":            {func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} }, "changes nothing of claims"},
		"Unprotect":        {func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil }, "changes nothing of claims"},
		"OfAnother":        {func(c *corev1.PersistentVolumeClaim) { c.Annotations["a"] = "b" }, "changes nothing of claims"},
	} {
		var err error
		s.Wait(name+" to be answered, and not by a conflict", func(ctx context.Context) (bool, error) {
			if err = update(ctx, tc.change); apierrors.IsConflict(err) {
				return false, err
			}
			return true, nil
		})
		if tc.want == "" {
			s.wantAllowed(name, err)
		} else {
			s.wantRefused(name, tc.want, err)
		}
	}
}

// TestTokenWithoutNode: a token of the account that is bound to no pod writes nothing.
func TestTokenWithoutNode(t *testing.T) {
	s := newNodePolicyScene(t)
	var token string
	s.Retry("request a token", func(ctx context.Context) error {
		request, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(ctx, nodeAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err == nil {
			token = request.Status.Token
		}
		return err
	})
	s.Wait("the policy to refuse it", func(ctx context.Context) (bool, error) {
		_, err := s.withToken(token).CoreV1().PersistentVolumes().Create(ctx, s.volumeOn("new", s.nodes[0]), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return refusedBy("the token names no node", err)
	})
}
