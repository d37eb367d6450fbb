package params

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
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
	var stem string
	switch o {
	case provision:
		stem = "csiProvisioner"
	case controllerPublish:
		stem = "csiControllerPublish"
	case nodeStage:
		stem = "csiNodeStage"
	case nodePublish:
		stem = "csiNodePublish"
	default:
		return keyPair{}, false
	}
	return keyPair{name: stem + "SecretName", namespace: stem + "SecretNamespace"}, true
}

// template is a secret reference in which tokens may still stand.
type template struct{ name, namespace string }

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
func parseSecrets(parameters map[string]string) (map[operation]template, error) {
	errs := make([]error, 0, len(operations())+1)
	common, commonSet, err := defaultKeys.template(parameters)
	errs = append(errs, err)
	templates := map[operation]template{}
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
func (o operation) template(parameters map[string]string) (template, bool, error) {
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
		return template{}, false, errors.Join(both, err, formerErr)
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
func (k keyPair) template(parameters map[string]string) (template, bool, error) {
	if !k.present(parameters) {
		return template{}, false, nil
	}
	t := template{name: parameters[k.name], namespace: parameters[k.namespace]}
	var errs []error
	if t.name == "" {
		errs = append(errs, fmt.Errorf("storage class parameter %q: must be set to a name as %q is given", k.name, k.namespace))
	}
	if t.namespace == "" {
		errs = append(errs, fmt.Errorf("storage class parameter %q: must be set to a namespace as %q is given", k.namespace, k.name))
	}
	if len(errs) > 0 {
		return template{}, false, errors.Join(errs...)
	}
	return t, true, nil
}

// Resolve fills in the secret templates of the class for one claim and its volume.
func (c Class) Resolve(v Values) (Secrets, error) {
	resolved := map[operation]*corev1.SecretReference{}
	errs := make([]error, 0, len(operations()))
	for _, op := range operations() {
		ref, err := c.resolve(op, v)
		errs = append(errs, err)
		resolved[op] = ref
	}
	if err := errors.Join(errs...); err != nil {
		return Secrets{}, err
	}
	return Secrets{
		Provision:         resolved[provision],
		ControllerPublish: resolved[controllerPublish],
		NodeStage:         resolved[nodeStage],
		NodePublish:       resolved[nodePublish],
		ControllerExpand:  resolved[controllerExpand],
		NodeExpand:        resolved[nodeExpand],
		ControllerModify:  resolved[controllerModify],
	}, nil
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
	ref, err := t.resolve(v)
	if err != nil {
		return nil, fmt.Errorf("resolve %s secret: %w", op, err)
	}
	return ref, nil
}
