package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// compilePolicy makes of a policy what the API server makes of it.
func compilePolicy(t *testing.T, policy *admissionregistrationv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	with := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	named := make([]cel.NamedExpressionAccessor, len(policy.Spec.Variables))
	for i, v := range policy.Spec.Variables {
		named[i] = &validating.Variable{Name: v.Name, Expression: v.Expression}
	}
	compiler.CompileAndStoreVariables(named, with, environment.StoredExpressions)
	conditions := make([]cel.ExpressionAccessor, len(policy.Spec.MatchConditions))
	for i := range policy.Spec.MatchConditions {
		conditions[i] = (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i])
	}
	validations := make([]cel.ExpressionAccessor, len(policy.Spec.Validations))
	for i, v := range policy.Spec.Validations {
		validations[i] = &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
	}
	compile := func(expressions []cel.ExpressionAccessor) cel.ConditionEvaluator {
		return compiler.CompileCondition(expressions, with, environment.StoredExpressions)
	}
	matcher := matchconditions.NewMatcher(compile(conditions), policy.Spec.FailurePolicy, "policy", "validate", policy.Name)
	return validating.NewValidator(compile(validations), matcher, compile(nil), compile(make([]cel.ExpressionAccessor, len(validations))), policy.Spec.FailurePolicy, nil)
}

// write is a request: a resource with its API group, and the object before and after it as YAML, of which one may be empty.
type write struct {
	group, resource, before, after string
}

func (w write) operation() admission.Operation {
	switch {
	case w.before == "":
		return admission.Create
	case w.after == "":
		return admission.Delete
	}
	return admission.Update
}

// refused returns why the policy refuses a write of the account of pods on a node, "" if it does not. No node: a token without one.
func (w write) refused(t *testing.T, v validating.Validator, account, node string) string {
	t.Helper()
	parse := func(text string) runtime.Object {
		if text == "" {
			return nil
		}
		object := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return &unstructured.Unstructured{Object: object}
	}
	who := &user.DefaultInfo{Name: "system:serviceaccount:csi-hostpath:" + account}
	if node != "" {
		who.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	resource, subresource, _ := strings.Cut(w.resource, "/")
	gvr := schema.GroupVersionResource{Group: w.group, Version: "v1", Resource: resource}
	kind := schema.GroupVersionKind{Group: w.group, Version: "v1", Kind: "Any"}
	attributes := &admission.VersionedAttributes{
		Attributes:         admission.NewAttributesRecord(parse(w.after), parse(w.before), kind, "", "", gvr, subresource, w.operation(), nil, false, who),
		VersionedKind:      kind,
		VersionedObject:    admission.NewLazyObject(parse(w.after)),
		VersionedOldObject: admission.NewLazyObject(parse(w.before)),
	}
	result := v.Validate(t.Context(), gvr, attributes, nil, &corev1.Namespace{}, celconfig.RuntimeCELCostBudget, nil)
	var why []string
	for _, d := range result.Decisions {
		if d.Evaluation == validating.EvalError {
			t.Errorf("%s: %s", w.resource, d.Message)
		}
		if d.Action == validating.ActionDeny {
			why = append(why, d.Message)
		}
	}
	return strings.Join(why, "; ")
}

// Objects of the tests below, as far as the policy reads them.
func volumeOf(driver, affinity string) string {
	return `{metadata: {name: pv}, spec: {csi: {driver: ` + driver + `, volumeHandle: h}` + affinity + `}}`
}

func onNodes(terms ...string) string {
	text := make([]string, len(terms))
	for i, term := range terms {
		text[i] = "{matchExpressions: [" + term + "]}"
	}
	return `, nodeAffinity: {required: {nodeSelectorTerms: [` + strings.Join(text, ", ") + `]}}`
}

func at(nodes string) string {
	return `{key: topology.hostpath.csi/node, operator: In, values: [` + nodes + `]}`
}

func claimWith(metadata, size string) string {
	return `{metadata: {name: data, ` + metadata + `}, spec: {resources: {requests: {storage: ` + size + `}}}}`
}

func annotated(selected string, more ...string) string {
	all := append([]string{"volume.kubernetes.io/storage-provisioner: hostpath.csi.k8s.io"}, more...)
	if selected != "" {
		all = append(all, "volume.kubernetes.io/selected-node: "+selected)
	}
	return "annotations: {" + strings.Join(all, ", ") + "}"
}

// nodeWrites are writes of the account on node n1: what the sidecars do, and what they never do.
func nodeWrites() map[string]struct {
	write
	want string
	// ofAll is what is refused where the account works for all nodes.
	ofAll string
} {
	const (
		otherDriver, otherNode = "only PersistentVolumes of its driver", "only PersistentVolumes whose node affinity is to its own node"
		attacher               = "only VolumeAttachments of its driver"
		record                 = "only the record of its own node"
		capacity               = "only CSIStorageCapacities of its own node"
		contents               = "only contents of snapshots of its driver on its own node"
		unchanged              = "changes nothing of claims and snapshots but"
		foreign                = "only claims of its driver"
		selects                = "selects no node for claims but its own"
	)
	const ours = driverName
	volume := func(before, after string) write { return write{"", "persistentvolumes", before, after} }
	claim := func(before, after string) write { return write{"", "persistentvolumeclaims", before, after} }
	space := func(before, after string) write {
		return write{"storage.k8s.io", "csistoragecapacities", before, after}
	}
	spaceAt := func(node, driver string) string {
		return `{metadata: {name: c, labels: {csi.storage.k8s.io/drivername: ` + driver + `}}, nodeTopology: {matchLabels: {topology.hostpath.csi/node: ` + node + `}}}`
	}
	lease := func(name string) write {
		return write{"coordination.k8s.io", "leases", "", `{metadata: {name: ` + name + `}}`}
	}
	attachment := func(driver string) write {
		text := `{metadata: {name: va}, spec: {attacher: ` + driver + `}}`
		return write{"storage.k8s.io", "volumeattachments/status", text, text}
	}
	content := func(driver, node, policy string) string {
		return `{metadata: {name: sc, labels: {snapshot.storage.kubernetes.io/managed-by: ` + node + `}}, spec: {driver: ` + driver + `, deletionPolicy: ` + policy + `}}`
	}
	contentTo := func(resource, before, after string) write {
		group, _, _ := strings.Cut(strings.TrimPrefix(resource, "volume"), "contents")
		return write{group + ".storage.k8s.io", resource, before, after}
	}
	mine, theirs := volumeOf(ours, onNodes(at("n1"))), volumeOf(ours, onNodes(at("n2")))
	const clone, restore = "finalizers: [kubernetes.io/pvc-protection, provisioner.storage.kubernetes.io/cloning-protection]", "finalizers: [provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection]"
	plain := claimWith("finalizers: [kubernetes.io/pvc-protection]", "1Gi")
	snapshot := func(metadata, source string) string {
		return `{metadata: {name: s` + metadata + `}, spec: {source: {persistentVolumeClaimName: ` + source + `}}}`
	}
	restored := func(before, after string) write {
		return write{"snapshot.storage.k8s.io", "volumesnapshots", before, after}
	}
	return map[string]struct {
		write
		want  string
		ofAll string
	}{
		"CreateVolume":          {volume("", mine), "", ""},
		"FinalizerOfVolume":     {volume(mine, strings.Replace(mine, "name: pv", "name: pv, finalizers: [f]", 1)), "", ""},
		"DeleteVolume":          {volume(mine, ""), "", ""},
		"CreateElsewhere":       {volume("", theirs), otherNode, ""},
		"CreateOnTwo":           {volume("", volumeOf(ours, onNodes(at("n1, n2")))), otherNode, ""},
		"CreateOnEither":        {volume("", volumeOf(ours, onNodes(at("n1"), at("n2")))), otherNode, ""},
		"CreateOnLabel":         {volume("", volumeOf(ours, onNodes(`{key: kubernetes.io/hostname, operator: In, values: [n1]}`))), otherNode, ""},
		"CreateNotOn":           {volume("", volumeOf(ours, onNodes(`{key: topology.hostpath.csi/node, operator: NotIn, values: [n1]}`))), otherNode, ""},
		"CreateEverywhere":      {volume("", volumeOf(ours, "")), otherNode, ""},
		"PatchElsewhere":        {volume(theirs, theirs), otherNode, ""},
		"MoveHere":              {volume(theirs, mine), otherNode, ""},
		"MoveAway":              {volume(mine, theirs), otherNode, ""},
		"DeleteElsewhere":       {volume(theirs, ""), otherNode, ""},
		"CreateOfAnother":       {volume("", volumeOf("ebs.csi.aws.com", onNodes(at("n1")))), otherDriver, otherDriver},
		"DeleteOfAnother":       {volume(volumeOf("ebs.csi.aws.com", onNodes(at("n1"))), ""), otherDriver, otherDriver},
		"CreateHostPath":        {volume("", `{metadata: {name: pv}, spec: {hostPath: {path: /}`+onNodes(at("n1"))+`}}`), otherDriver, otherDriver},
		"TakeClaim":             {claim(claimWith(annotated(""), "1Gi"), claimWith(annotated("n1"), "1Gi")), "", ""},
		"TakeFromGoneNode":      {claim(claimWith(annotated("n9"), "1Gi"), claimWith(annotated("n1"), "1Gi")), "", ""},
		"Reschedule":            {claim(claimWith(annotated("n1"), "1Gi"), claimWith(annotated(""), "1Gi")), "", ""},
		"HandOver":              {claim(claimWith(annotated("n1"), "1Gi"), claimWith(annotated("n2"), "1Gi")), "", ""},
		"SelectForAnother":      {claim(claimWith(annotated(""), "1Gi"), claimWith(annotated("n2"), "1Gi")), selects, ""},
		"RescheduleElsewhere":   {claim(claimWith(annotated("n2"), "1Gi"), claimWith(annotated(""), "1Gi")), selects, ""},
		"ProtectSource":         {claim(plain, claimWith(clone, "1Gi")), "", ""},
		"ReleaseSource":         {claim(claimWith(clone, "1Gi"), plain), "", ""},
		"FormerRecord":          {claim(claimWith(annotated("n1", "csi.longshore.dev/provisioner-journal: r")+", finalizers: [csi.longshore.dev/provisioner-in-progress]", "1Gi"), claimWith(annotated("n1"), "1Gi")), "", ""},
		"Grow":                  {claim(plain, claimWith("finalizers: [kubernetes.io/pvc-protection]", "9Gi")), unchanged, unchanged},
		"FinalizerOfAnother":    {claim(plain, claimWith("finalizers: []", "1Gi")), unchanged, unchanged},
		"Label":                 {claim(plain, claimWith("finalizers: [kubernetes.io/pvc-protection], labels: {a: b}", "1Gi")), unchanged, unchanged},
		"AddAnnotation":         {claim(claimWith(annotated("n1"), "1Gi"), claimWith(annotated("n1", "a: b"), "1Gi")), unchanged, unchanged},
		"ChangeAnnotation":      {claim(claimWith(annotated("n1", "a: c"), "1Gi"), claimWith(annotated("n1", "a: b"), "1Gi")), unchanged, unchanged},
		"RemoveAnnotation":      {claim(claimWith(annotated("n1", "a: c"), "1Gi"), claimWith(annotated("n1"), "1Gi")), unchanged, unchanged},
		"ClaimOfAnother":        {claim(claimWith("annotations: {volume.kubernetes.io/storage-provisioner: ebs.csi.aws.com}", "1Gi"), claimWith("annotations: {volume.kubernetes.io/storage-provisioner: ebs.csi.aws.com, volume.kubernetes.io/selected-node: n1}", "1Gi")), foreign, foreign},
		"ClaimOfAnotherBeta":    {claim(claimWith("annotations: {volume.beta.kubernetes.io/storage-provisioner: ebs.csi.aws.com}", "1Gi"), claimWith("annotations: {volume.beta.kubernetes.io/storage-provisioner: ebs.csi.aws.com, volume.kubernetes.io/selected-node: n1}", "1Gi")), foreign, foreign},
		"ProtectSnapshot":       {restored(snapshot("", "data"), snapshot(", "+restore, "data")), "", ""},
		"ReleaseSnapshot":       {restored(snapshot(", "+restore, "data"), snapshot("", "data")), "", ""},
		"ChangeSnapshot":        {restored(snapshot("", "data"), snapshot("", "other")), unchanged, unchanged},
		"Capacity":              {space("", spaceAt("n1", ours)), "", ""},
		"CapacityChanged":       {space(spaceAt("n1", ours), spaceAt("n1", ours)), "", ""},
		"CapacityGone":          {space(spaceAt("n1", ours), ""), "", ""},
		"CapacityElsewhere":     {space("", spaceAt("n2", ours)), capacity, ""},
		"CapacityGoneElsewhere": {space(spaceAt("n2", ours), ""), capacity, ""},
		"CapacityEverywhere":    {space("", `{metadata: {name: c, labels: {csi.storage.k8s.io/drivername: hostpath.csi.k8s.io}}}`), capacity, ""},
		"CapacityOfAnother":     {space("", spaceAt("n2", "ebs.csi.aws.com")), capacity, capacity},
		"Record":                {lease("hostpath-csi-k8s-io-journal-n1"), "", ""},
		"RecordElsewhere":       {lease("hostpath-csi-k8s-io-journal-n2"), record, ""},
		"Election":              {lease("external-resizer-hostpath-csi-k8s-io"), "", ""},
		"Attachment":            {attachment(ours), "", ""},
		"AttachmentOfAnother":   {attachment("ebs.csi.aws.com"), attacher, attacher},
		"Content":               {contentTo("volumesnapshotcontents", content(ours, "n1", "Delete"), content(ours, "n1", "Delete")), "", ""},
		"ContentStatus":         {contentTo("volumesnapshotcontents/status", content(ours, "n1", "Delete"), content(ours, "n1", "Delete")), "", ""},
		"GroupContent":          {contentTo("volumegroupsnapshotcontents", content(ours, "n1", "Delete"), content(ours, "n1", "Delete")), "", ""},
		"ContentElsewhere":      {contentTo("volumesnapshotcontents", content(ours, "n2", "Delete"), content(ours, "n2", "Delete")), contents, ""},
		"ContentTaken":          {contentTo("volumesnapshotcontents", content(ours, "n2", "Delete"), content(ours, "n1", "Delete")), contents, ""},
		"GroupContentElsewhere": {contentTo("volumegroupsnapshotcontents/status", content(ours, "n2", "Delete"), content(ours, "n2", "Delete")), contents, ""},
		"ContentOfAnother":      {contentTo("volumesnapshotcontents", content("ebs.csi.aws.com", "n1", "Delete"), content("ebs.csi.aws.com", "n1", "Delete")), contents, contents},
		"ContentSpec":           {contentTo("volumesnapshotcontents", content(ours, "n1", "Delete"), content(ours, "n1", "Retain")), contents, contents},
	}
}

// TestNodePolicy: root on a node, who has the token of its pods, writes nothing of other drivers, nor of other nodes where each node works for itself; the sidecars
// write what they did. The API server's own code evaluates the expressions.
func TestNodePolicy(t *testing.T) {
	for overlay, account := range map[string]string{"distributed": "csi-hostpath-node", "daemonset": "csi-hostpath-controller"} {
		policy := one[*admissionregistrationv1.ValidatingAdmissionPolicy](t, objects(t, overlay))
		validator := compilePolicy(t, policy)
		if err := validator.CompileError(); err != nil {
			t.Fatal(err)
		}
		tests := nodeWrites()
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			t.Run(overlay+"/"+name, func(t *testing.T) {
				tc := tests[name]
				want := tc.want
				if overlay == "daemonset" {
					want = tc.ofAll
				}
				if got := tc.refused(t, validator, account, "n1"); want == "" && got != "" || !strings.Contains(got, want) {
					t.Errorf("refused: %q, want %q", got, want)
				}
				if got := tc.refused(t, validator, "another", "n2"); got != "" {
					t.Errorf("another account is refused: %q", got)
				}
				if got := tc.refused(t, validator, account, ""); overlay == "distributed" && !strings.Contains(got, "the token names no node") {
					t.Errorf("a token without a node: refused: %q", got)
				}
			})
		}
		for name, tc := range tests {
			if !watches(policy, tc.write) {
				t.Errorf("%s: the policy does not see %s: %s", overlay, name, tc.resource)
			}
		}
	}
}

// watches reports whether a policy is about a write.
func watches(policy *admissionregistrationv1.ValidatingAdmissionPolicy, w write) bool {
	operation := admissionregistrationv1.OperationType(w.operation())
	return slices.ContainsFunc(policy.Spec.MatchConstraints.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.APIGroups, w.group) && slices.Contains(r.Resources, w.resource) && slices.Contains(r.Operations, operation)
	})
}
