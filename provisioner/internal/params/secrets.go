package params

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/secretref"
)

// operation is a CSI operation that may be given a secret of its own.
type operation string

// The operations, by the middle part of their parameter keys.
const (
	provision         operation = "provisioner"
	controllerPublish operation = "controller-publish"
	nodeStage         operation = "node-stage"
	nodePublish       operation = "node-publish"
	controllerExpand  operation = "controller-expand"
	nodeExpand        operation = "node-expand"
	controllerModify  operation = "controller-modify"
)

// operations lists every operation in a fixed order, which is the order of error messages.
func operations() []operation {
	return []operation{provision, controllerPublish, nodeStage, nodePublish, controllerExpand, nodeExpand, controllerModify}
}

// keyPair is the pair of parameter keys that name one secret.
type keyPair struct{ name, namespace string }

// defaultKeys name the secret of every operation that has none of its own.
var defaultKeys = keyPair{name: Prefix + "secret-name", namespace: Prefix + "secret-namespace"}

// keys returns the parameter keys of the operation.
func (o operation) keys() keyPair {
	return keyPair{name: Prefix + string(o) + "-secret-name", namespace: Prefix + string(o) + "-secret-namespace"}
}

// deprecatedKeys returns the keys of the first CSI release, of the design document "CSI credentials".
func (o operation) deprecatedKeys() (keyPair, bool) {
	stem, ok := map[operation]string{
		provision: "csiProvisioner", controllerPublish: "csiControllerPublish", nodeStage: "csiNodeStage", nodePublish: "csiNodePublish",
	}[o]
	return keyPair{name: stem + "SecretName", namespace: stem + "SecretNamespace"}, ok
}

// Values are the values of the tokens of a secret template.
type Values struct {
	// PVName is the name of the PersistentVolume, token ${pv.name}.
	PVName string
	// ClaimName is the name of the claim, token ${pvc.name}.
	ClaimName string
	// ClaimNamespace is the namespace of the claim, token ${pvc.namespace}.
	ClaimNamespace string
	// ClaimAnnotations are the annotations of the claim, tokens ${pvc.annotations['key']}.
	ClaimAnnotations map[string]string
}

// namespaceTokens are the tokens that may stand in a namespace: nothing that the owner of a claim can
// choose freely, lest a claim reads the secrets of another namespace.
func (v Values) namespaceTokens() map[string]string {
	return map[string]string{"pv.name": v.PVName, "pvc.namespace": v.ClaimNamespace}
}

// nameTokens are the tokens that may stand in a secret name.
func (v Values) nameTokens() map[string]string {
	tokens := v.namespaceTokens()
	tokens["pvc.name"] = v.ClaimName
	for key, value := range v.ClaimAnnotations {
		tokens["pvc.annotations['"+key+"']"] = value
	}
	return tokens
}

// Secrets refers to the secrets of one volume, an absent one being nil.
type Secrets struct {
	// Provision is given to CreateVolume and DeleteVolume.
	Provision *corev1.SecretReference
	// ControllerPublish is given to ControllerPublishVolume and ControllerUnpublishVolume.
	ControllerPublish *corev1.SecretReference
	// NodeStage is given to NodeStageVolume.
	NodeStage *corev1.SecretReference
	// NodePublish is given to NodePublishVolume.
	NodePublish *corev1.SecretReference
	// ControllerExpand is given to ControllerExpandVolume.
	ControllerExpand *corev1.SecretReference
	// NodeExpand is given to NodeExpandVolume.
	NodeExpand *corev1.SecretReference
	// ControllerModify is given to ControllerModifyVolume.
	ControllerModify *corev1.SecretReference
}

// parseSecrets reads the secret templates of all operations.
func parseSecrets(parameters map[string]string) (map[operation]secretref.Template, error) {
	errs := make([]error, 0, len(operations())+1)
	common, commonSet, err := defaultKeys.template(parameters)
	errs = append(errs, err)
	templates := map[operation]secretref.Template{}
	for _, op := range operations() {
		own, ownSet, err := op.template(parameters)
		errs = append(errs, err)
		switch {
		case ownSet:
			templates[op] = own
		case commonSet:
			templates[op] = common
		}
	}
	return templates, errors.Join(errs...)
}

// template reads the secret of one operation from its present or its deprecated keys.
func (o operation) template(parameters map[string]string) (secretref.Template, bool, error) {
	keys := o.keys()
	own, ownSet, err := keys.template(parameters)
	old, hasOld := o.deprecatedKeys()
	if !hasOld {
		return own, ownSet, err
	}
	former, formerSet, formerErr := old.template(parameters)
	switch {
	case keys.present(parameters) && old.present(parameters):
		both := fmt.Errorf("storage class parameters %q and %q: the deprecated and the present form of a secret may not be given together",
			old.name, keys.name)
		return secretref.Template{}, false, errors.Join(both, err, formerErr)
	case formerSet || formerErr != nil:
		return former, formerSet, formerErr
	}
	return own, ownSet, err
}

// present reports whether any key of the pair is given.
func (k keyPair) present(parameters map[string]string) bool {
	_, name := parameters[k.name]
	_, namespace := parameters[k.namespace]
	return name || namespace
}

// template reads a pair of keys; the two go together and neither may be empty.
func (k keyPair) template(parameters map[string]string) (secretref.Template, bool, error) {
	if !k.present(parameters) {
		return secretref.Template{}, false, nil
	}
	t := secretref.Template{Name: parameters[k.name], Namespace: parameters[k.namespace]}
	if t.Name == "" || t.Namespace == "" {
		return secretref.Template{}, false, fmt.Errorf("storage class parameters %q and %q: must be set together, a secret has a name and a namespace", k.name, k.namespace)
	}
	return t, true, nil
}

// Resolve fills in the secret templates of the class for one claim and its volume.
func (c Class) Resolve(v Values) (s Secrets, _ error) {
	fields := map[operation]**corev1.SecretReference{
		provision: &s.Provision, controllerPublish: &s.ControllerPublish, nodeStage: &s.NodeStage, nodePublish: &s.NodePublish,
		controllerExpand: &s.ControllerExpand, nodeExpand: &s.NodeExpand, controllerModify: &s.ControllerModify,
	}
	errs := make([]error, 0, len(operations()))
	for _, op := range operations() {
		ref, err := c.resolve(op, v)
		*fields[op] = ref
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Secrets{}, err
	}
	return s, nil
}

// ResolveProvision fills in the template of the secret for CreateVolume and DeleteVolume alone, which is
// what deletion needs of a volume that has no record of its secret.
func (c Class) ResolveProvision(v Values) (*corev1.SecretReference, error) {
	return c.resolve(provision, v)
}

// resolve fills in the template of one operation.
func (c Class) resolve(op operation, v Values) (*corev1.SecretReference, error) {
	t, ok := c.templates[op]
	if !ok {
		return nil, nil
	}
	ref, err := t.Resolve(v.nameTokens(), v.namespaceTokens())
	if err != nil {
		return nil, fmt.Errorf("resolve %s secret: %w", op, err)
	}
	return ref, nil
}
