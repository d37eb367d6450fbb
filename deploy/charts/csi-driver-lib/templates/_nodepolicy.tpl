{{/* Made of components/node-policy by a test: go test -rewrite. */}}
{{- define "csi-driver-lib.node-policy" -}}
{{- if and .Values.provisionOnNodes .Values.nodePolicy.enabled -}}
{{- $name := printf "%s-node" (include "csi-driver-lib.name" .) -}}
# RBAC cannot limit a right to the objects of one node. This policy does, by the name of the node in the token, which the API server vouches for: Kubernetes 1.30 and
# later put it into the tokens of pods. Reading is not limited, and an event may be about any object.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels: {{- include "csi-driver-lib.labels" . | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE, DELETE], resources: [persistentvolumes]}
    - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [persistentvolumeclaims]}
    - {apiGroups: [storage.k8s.io], apiVersions: [v1], operations: [CREATE, UPDATE, DELETE], resources: [csistoragecapacities]}
    - {apiGroups: [storage.k8s.io], apiVersions: [v1], operations: [UPDATE], resources: [volumeattachments, volumeattachments/status]}
    - {apiGroups: [coordination.k8s.io], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [leases]}
    - {apiGroups: [snapshot.storage.k8s.io], apiVersions: [v1], operations: [UPDATE], resources: [volumesnapshots, volumesnapshotcontents, volumesnapshotcontents/status]}
    - {apiGroups: [groupsnapshot.storage.k8s.io], apiVersions: ["*"], operations: [UPDATE], resources: [volumegroupsnapshotcontents, volumegroupsnapshotcontents/status]}
  matchConditions:
  - name: account
    expression: request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:{{ $name }}'
  variables:
  - {name: everyNode, expression: "{{ or (empty .Values.nodePolicy.key) (contains "resizer" (include "csi-driver-lib.sidecars" .)) }}"} # true where one account works for all nodes
  - {name: driver, expression: "'{{ .Values.driver.name }}'"}
  - {name: key, expression: "'{{ .Values.nodePolicy.key }}'"} # of the driver's topology
  - name: node
    expression: request.userInfo.?extra['authentication.kubernetes.io/node-name'].orValue(['']).join('')
  - {name: resource, expression: request.resource.resource}
  # The object before and after; dyn, as the types of the resources differ.
  - name: objects
    expression: "request.operation == 'CREATE' ? [dyn(object)] : request.operation == 'DELETE' ? [dyn(oldObject)] : [dyn(oldObject), dyn(object)]"
  - {name: annotations, expression: "variables.objects.map(o, o.metadata.?annotations.orValue({}))"}
  - {name: labels, expression: "variables.objects.map(o, o.metadata.?labels.orValue({}))"}
  - name: finalizers
    expression: >-
      variables.objects.map(o, o.metadata.?finalizers.orValue([]).filter(f, !(f in ['provisioner.storage.kubernetes.io/cloning-protection',
      'provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection', 'csi.longshore.dev/provisioner-in-progress'])))
  - name: ofProvisioner # annotations of claims
    expression: "['volume.kubernetes.io/selected-node', 'volume.alpha.kubernetes.io/selected-node', 'csi.longshore.dev/provisioner-journal']"
  - name: selected
    expression: variables.annotations.map(a, a[?'volume.kubernetes.io/selected-node'].orValue(''))
  validations:
  - expression: variables.everyNode || variables.node != ''
    reason: Forbidden
    message: the token names no node, as those of pods do since Kubernetes 1.30
  - expression: variables.resource != 'persistentvolumes' || variables.objects.all(o, has(o.spec.csi) && o.spec.csi.driver == variables.driver)
    reason: Forbidden
    message: this account writes only PersistentVolumes of its driver
  - expression: >-
      variables.resource != 'persistentvolumes' || variables.everyNode || variables.objects.all(o, has(o.spec.nodeAffinity) && has(o.spec.nodeAffinity.required)
      && o.spec.nodeAffinity.required.nodeSelectorTerms.all(t, has(t.matchExpressions)
      && t.matchExpressions.exists(e, e.key == variables.key && e.operator == 'In' && e.values == [variables.node])))
    reason: Forbidden
    message: this account writes only PersistentVolumes whose node affinity is to its own node
  - expression: variables.resource != 'volumeattachments' || variables.objects.all(o, o.spec.attacher == variables.driver)
    reason: Forbidden
    message: this account writes only VolumeAttachments of its driver
  - expression: >-
      variables.resource != 'csistoragecapacities' || (variables.everyNode ? variables.labels.all(l, l[?'csi.storage.k8s.io/drivername'].orValue('') == variables.driver)
      : variables.objects.all(o, o.?nodeTopology.matchLabels[?variables.key].orValue('') == variables.node))
    reason: Forbidden
    message: this account writes only CSIStorageCapacities of its own node
  # Leases of an election are of all nodes.
  - expression: >-
      variables.resource != 'leases' || variables.everyNode
      || variables.objects.all(o, !o.metadata.name.contains('-journal-') || o.metadata.name.endsWith('-journal-' + variables.node))
    reason: Forbidden
    message: this account writes only the record of its own node
  - expression: >-
      !(variables.resource in ['volumesnapshotcontents', 'volumegroupsnapshotcontents']) || variables.objects[0].spec == variables.objects[1].spec && variables.objects[0].spec.driver == variables.driver
      && (variables.everyNode || variables.labels.all(l, l[?'snapshot.storage.kubernetes.io/managed-by'].orValue('') == variables.node))
    reason: Forbidden
    message: this account writes only contents of snapshots of its driver on its own node, and not their spec
  - expression: >-
      !(variables.resource in ['persistentvolumeclaims', 'volumesnapshots']) || variables.objects[0].spec == variables.objects[1].spec
      && variables.labels[0] == variables.labels[1] && variables.finalizers[0] == variables.finalizers[1]
      && variables.annotations[0].all(k, k in variables.ofProvisioner || variables.annotations[1][?k] == optional.of(variables.annotations[0][k]))
      && variables.annotations[1].all(k, k in variables.ofProvisioner || k in variables.annotations[0])
    reason: Forbidden
    message: this account changes nothing of claims and snapshots but the provisioner's annotations and finalizers
  - expression: >-
      variables.resource != 'persistentvolumeclaims' || variables.annotations.all(a, a[?'volume.kubernetes.io/storage-provisioner']
      .or(a[?'volume.beta.kubernetes.io/storage-provisioner']).orValue(variables.driver) == variables.driver)
    reason: Forbidden
    message: this account writes only claims of its driver
  # A node takes a claim, hands over one that it has, or returns it to the scheduler.
  - expression: >-
      variables.resource != 'persistentvolumeclaims' || variables.everyNode || variables.selected[0] == variables.selected[1] || variables.node in variables.selected
    reason: Forbidden
    message: this account selects no node for claims but its own
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels: {{- include "csi-driver-lib.labels" . | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end -}}
{{- end -}}
